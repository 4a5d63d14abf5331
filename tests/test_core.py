"""`mmtempo.core` keeps the former name of `SyncCensus`."""

from mmtempo.core import WaitCensus
from mmtempo.doctor.sync_census import SyncCensus


def test_the_former_name_is_the_same_class() -> None:
    assert WaitCensus is SyncCensus
