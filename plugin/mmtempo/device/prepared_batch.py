"""A batch of the loader together with its prepared form."""

from __future__ import annotations

from typing import Any


class PreparedBatch(dict):
    """A batch as the loader made it, with its form on the device, which `take` returns once.

    If a hook has changed a key of the batch, or the prepared form was taken before, `take` returns
    None, and the preprocessor prepares the batch as it is. Copies are plain dicts.

    Args:
        batch: The batch as the loader made it.
        ready: The prepared form.
        training: Whether it is prepared for training or testing; None for both.
            Defaults to None.
    """

    def __init__(self, batch: dict, ready: Any, training: bool | None = None) -> None:
        super().__init__(batch)
        self._batch, self._ready, self._training = batch, ready, training

    def take(self, training: bool | None = None) -> Any:
        """Return the prepared form and drop it here; None if the batch was changed or taken.

        The caller owns the result, so its memory can be freed while the model computes.

        Args:
            training: Whether it is needed for training or testing; None where it makes no
                difference. Defaults to None.
        """
        if training is not self._training:
            return None
        ready, self._ready = self._ready, None
        batch, self._batch = self._batch, {}
        same = len(batch) == len(self) and all(self.get(key) is batch[key] for key in batch)
        return ready if same else None

    def __reduce__(self) -> tuple:
        return dict, (dict(self),)


def take_prepared(data: Any, training: bool) -> Any:
    """Return the prepared form of `data`; None if it has none for this mode."""
    return data.take(training) if isinstance(data, PreparedBatch) else None
