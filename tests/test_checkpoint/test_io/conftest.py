"""A writer that is closed after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmtempo.checkpoint.io.writer import DurableWriter


@pytest.fixture
def writer() -> Iterator[DurableWriter]:
    writer = DurableWriter()
    yield writer
    writer.close()
