"""Weights of the batches of an update whose number and sizes are not known in advance."""

from __future__ import annotations


class UpdateWindow:
    """Factors that make the gradient of several batches the mean over all of their samples.

    ::

        a batch of n samples     its loss * n / N      when its loss is known
        the last one has come    gradient * N / sum(n)   unless that is 1

    N is the usual number of samples of an update. An update with a smaller batch, or with fewer
    batches as at the end of an epoch, is known as such only when all of its batches have come.
    For the usual update the second factor is 1, and the gradients need no further kernel.

    Args:
        number: Index of the update.
        usual: Usual number of samples of an update.

    Attributes:
        is_last: Whether the announced batch is the last one of the update.
        is_complete: Whether the update has been made.
    """

    def __init__(self, number: int, usual: int) -> None:
        self.is_last = self.is_complete = False
        self._number, self._usual, self._seen = number, usual, 0
        self._samples: int | None = None  # of the announced batch, until its loss is scaled

    def check_before(self, number: int) -> None:
        """Raise RuntimeError if update `number` begins before this one was made.

        An update that has failed may be begun again, with the same number.
        """
        if not self.is_complete and number != self._number:
            raise _misused()

    def announce(self, samples: int, is_last: bool) -> None:
        """Announce the next batch, by its number of samples."""
        self._samples, self.is_last = samples, is_last

    def divisor(self) -> float:
        """Return the divisor of the loss of the announced batch."""
        samples, self._samples = self._samples, None
        if not samples:
            raise _misused()
        self._seen += samples
        return self._usual / samples

    def complete(self) -> float:
        """Return the factor of the gradients that is left before they make the update."""
        if not self._seen or not self.is_last or self.is_complete:
            raise _misused()
        self.is_complete = True
        return self._usual / self._seen


def _misused() -> RuntimeError:
    return RuntimeError(
        "train_cfg.count='updates' needs a model whose train_step calls "
        'optim_wrapper.update_params once for each batch, and not step; use '
        "train_cfg.count='iterations' for this model"
    )
