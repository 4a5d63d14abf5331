"""Which share of an update a batch has, while nobody knows yet how many will come."""

from __future__ import annotations


class UpdateWindow:
    """Makes the gradient of several batches the mean over all of their samples.

    ::

        a batch of n samples     its loss * n / N      as each of them comes
        the last one has come    gradient * N / sum(n)   where that is not 1

    N is what an update usually has. That a batch is smaller, or that there are fewer of them, as
    at the end of an epoch, is known when they have come; mostly it is not so, and nothing is
    left to be done.

    Args:
        number: Of the update.
        usual: Samples of an update, as a rule.

    Attributes:
        is_last: Whether the batch that is at its turn is the last one.
        is_complete: Whether the update has been made.
    """

    def __init__(self, number: int, usual: int) -> None:
        self.is_last = self.is_complete = False
        self._number, self._usual, self._seen = number, usual, 0
        self._samples: int | None = None  # of the batch, until its loss is there

    def check_before(self, number: int) -> None:
        """Another update begins; one that has failed may be begun again."""
        if not self.is_complete and number != self._number:
            raise _misused()

    def announce(self, samples: int, is_last: bool) -> None:
        """The next batch is at its turn."""
        self._samples, self.is_last = samples, is_last

    def divisor(self) -> float:
        """Of the loss of this batch."""
        samples, self._samples = self._samples, None
        if not samples:
            raise _misused()
        self._seen += samples
        return self._usual / samples

    def complete(self) -> float:
        """Of gradients, the factor that is left before they make the update."""
        if not self._seen or not self.is_last or self.is_complete:
            raise _misused()
        self.is_complete = True
        return self._usual / self._seen


def _misused() -> RuntimeError:
    return RuntimeError(
        "train_cfg.count='updates' needs a model whose train_step calls "
        'optim_wrapper.update_params once for each batch, and not step; use '
        "train_cfg.count='iterations' for this one"
    )
