"""A batch of the loader, together with what was made of it ahead of its turn."""

from __future__ import annotations

from typing import Any


class PreparedBatch(dict):
    """The batch as the loader made it, for all who look into it; its preparation is taken once.

    Whoever changes the batch by its keys gets what the change asks for: the preparation is not
    handed out then, and the batch is prepared as it is, at its turn. So it is when somebody
    prepares it a second time. Copies are plain batches.

    Args:
        batch: As the loader made it.
        ready: What was made of it.
        training: For training or for testing; None is for either. Defaults to None.
    """

    def __init__(self, batch: dict, ready: Any, training: bool | None = None) -> None:
        super().__init__(batch)
        self._batch, self._ready, self._training = batch, ready, training

    def take(self, training: bool | None = None) -> Any:
        """What was made of the batch, if it is still for this batch; None otherwise.

        It belongs to the caller, so that its memory may go while the model still computes.

        Args:
            training: What it is needed for; None where that makes no difference.
                Defaults to None.
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
    """What was made of the data ahead of its turn; None if nothing was, or something else."""
    return data.take(training) if isinstance(data, PreparedBatch) else None
