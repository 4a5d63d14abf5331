"""The text log of a training, on a disk that may be full."""

from __future__ import annotations

import logging
import os

from mmtempo.utils.write_guard import WriteGuard, append_whole


class LogFile(logging.FileHandler):
    """Append each line whole or not at all; report the first failure instead of a traceback each.

    It opens the file for each line, so that a folder that was away is found again.

    Args:
        handler: The handler whose file, format and filters it takes over.
        logger: Takes the reports.
    """

    def __init__(self, handler: logging.FileHandler, logger: logging.Logger) -> None:
        super().__init__(handler.baseFilename, 'a')  # mmengine writes to `stream` as well
        self.setFormatter(handler.formatter)
        self.setLevel(handler.level)
        for one in handler.filters:
            self.addFilter(one)
        self._guard = WriteGuard(os.path.basename(handler.baseFilename), logger.error)

    @classmethod
    def take_over(cls, logger: logging.Logger) -> None:
        """Replace the plain file handlers of a logger."""
        for handler in list(logger.handlers):
            if type(handler) is logging.FileHandler:
                logger.removeHandler(handler)
                handler.close()
                logger.addHandler(cls(handler, logger))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record) + self.terminator
        except Exception:  # as logging's own handlers
            self.handleError(record)
            return
        self._guard.write(lambda: append_whole(self.baseFilename, text))
