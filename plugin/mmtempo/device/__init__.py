"""Transfers between host and device, and timing on the device."""
