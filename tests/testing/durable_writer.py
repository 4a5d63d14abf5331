"""Saves by a `DurableWriter`, and what they leave on the disk and in this process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.io.save import Save
from mmtempo.checkpoint.io.writer import DurableWriter

LONG = 60.0  # seconds; only a deadlock takes that long
# From Python 3.12 on, a fork warns in a process with threads; data loaders fork all the same.
forks = pytest.mark.filterwarnings('ignore:.*multi-threaded:DeprecationWarning')


def load(path: Path) -> Any:
    """Load a file that must be complete."""
    assert check_archive(str(path)) is None
    return torch.load(path, weights_only=True)


def process_of(writer: DurableWriter) -> int:
    """Return the ID of the writer process."""
    process = writer._thread._process
    assert process is not None
    return process.pid


def save(writer: DurableWriter, path: Path, value: int = 1, **options: Any) -> Save:
    """Start a save without late tensors."""
    return writer.save([(str(path), dict(value=torch.full((3,), value)))], **options)


def is_value(path: Path, value: int) -> bool:
    """Return whether a file is what `save` writes for a value."""
    return torch.equal(load(path)['value'], torch.full((3,), value))


def stop_process(writer: DurableWriter) -> None:
    """Stop the writer process, as if it were waiting for a disk."""
    os.kill(process_of(writer), signal.SIGSTOP)


def resources() -> tuple[int, list[str], int]:
    """Return the file descriptors, threads and mappings of this process."""
    with open('/proc/self/maps') as file:
        mappings = sum('mmtempo-checkpoint' in line for line in file)
    names = [thread.name for thread in threading.enumerate() if 'mmtempo' in thread.name]
    return len(os.listdir('/proc/self/fd')), names, mappings
