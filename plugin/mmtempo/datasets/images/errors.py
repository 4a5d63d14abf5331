"""Error that names the file of a bad sample."""


class BadSampleError(ValueError):
    """A sample that cannot be read; the message names its file and the reason.

    Its only argument is one string, so that a worker process can send it unchanged.
    """
