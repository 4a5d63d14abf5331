"""Former home and name of `mmtempo.doctor.sync_census.SyncCensus`; kept until 0.2."""

from mmtempo.doctor.sync_census import SyncCensus as WaitCensus

__all__ = ['WaitCensus']
