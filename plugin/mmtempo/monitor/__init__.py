"""Observe a running training: timers, profiles and the run's records."""
