"""The text log survives a full disk and a lost folder."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmtempo.logging.log_file import LogFile
from tests.testing.common import fill


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.Logger('test_log_file')
    yield logger
    for handler in logger.handlers:
        handler.close()


def take_over(logger: logging.Logger, path: Path) -> None:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter('%(levelname)s %(message)s'))
    logger.addHandler(handler)
    LogFile.take_over(logger)


def test_format_and_file_are_kept(logger: logging.Logger, tmp_path: Path) -> None:
    take_over(logger, tmp_path / 'run.log')
    logger.info('first')
    assert (tmp_path / 'run.log').read_text() == 'INFO first\n'
    assert [type(handler) for handler in logger.handlers] == [LogFile]


def test_lines_on_a_full_disk_are_dropped_whole(logger: logging.Logger, small_disk: Path) -> None:
    path = small_disk / 'run.log'
    take_over(logger, path)
    logger.info('first')
    fill(small_disk)
    for _ in range(3):
        logger.info('x' * 10_000)
    (small_disk / 'all').unlink()
    logger.info('last')
    lines = path.read_text().splitlines()
    assert lines[0] == 'INFO first'
    assert 'INFO last' in lines
    assert not [line for line in lines if line.startswith('INFO x') and len(line) != 10_005]
    assert any('written again; lines lost: ' in line for line in lines)


def test_a_folder_that_comes_back_is_used_again(logger: logging.Logger, tmp_path: Path) -> None:
    folder = tmp_path / 'work'
    folder.mkdir()
    take_over(logger, folder / 'run.log')
    shutil.rmtree(folder)
    logger.info('lost')
    folder.mkdir()
    logger.info('found')
    assert 'INFO found' in (folder / 'run.log').read_text()


def test_records_that_cannot_be_formatted_are_reported_by_logging(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    take_over(logger, tmp_path / 'run.log')
    logger.info('%d', 'no number')
    assert 'TypeError' in capsys.readouterr().err
