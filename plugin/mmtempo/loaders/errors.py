"""What a loader says when no batch comes."""

from __future__ import annotations


class LoaderError(RuntimeError):
    """No batch comes, and why; the training can go on from its checkpoint once that is mended."""
