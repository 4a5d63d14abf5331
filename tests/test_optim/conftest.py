"""Fixtures of the optimizer wrapper tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from mmengine.logging import MMLogger


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture) -> Callable:
    """Return a function that runs a callable and returns mmengine's log warnings of it."""

    def run(work: Callable) -> list[str]:
        logger = MMLogger.get_current_instance()
        caplog.clear()
        logger.addHandler(caplog.handler)
        try:
            work()
        finally:
            logger.removeHandler(caplog.handler)
        return [record.message for record in caplog.records if record.levelname == 'WARNING']

    return run
