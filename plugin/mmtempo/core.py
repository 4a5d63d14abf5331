"""Former home of `WaitCensus`; import it from `mmtempo.doctor.sync_census` instead."""

from mmtempo.doctor.sync_census import WaitCensus

__all__ = ['WaitCensus']
