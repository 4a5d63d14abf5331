"""The version is the one of the installed package."""

from importlib import metadata

import mmtempo
from mmtempo.version import __version__


def test_the_version_is_that_of_the_package() -> None:
    assert mmtempo.__version__ == __version__ == metadata.version('mmtempo')
