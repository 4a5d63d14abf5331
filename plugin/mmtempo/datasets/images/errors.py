"""The error that names one bad sample."""


class BadSampleError(ValueError):
    """A sample that cannot be read; the message names its file and what is wrong with it.

    One string is its only argument, so that it crosses from a worker process unchanged.
    """
