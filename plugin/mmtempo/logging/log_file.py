"""A text log that survives a full disk."""

from __future__ import annotations

import logging
import os

from mmtempo.utils.write_guard import WriteGuard, append_whole


class LogFile(logging.FileHandler):
    """A file handler that writes a line completely or not at all, and reports failures once.

    The file is opened for each line, so that logging continues after a mount has come back.

    Args:
        handler: The handler whose file, format and filters to use.
        logger: The logger for reports of failures.
    """

    def __init__(self, handler: logging.FileHandler, logger: logging.Logger) -> None:
        super().__init__(handler.baseFilename, 'a')  # with a stream: mmengine writes to it directly
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
        """Write a record."""
        try:
            text = self.format(record) + self.terminator
        except Exception:  # as the handlers of `logging` do
            self.handleError(record)
            return
        self._guard.write(lambda: append_whole(self.baseFilename, text))
