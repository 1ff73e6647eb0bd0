"""Contracts of `sidecar/operations/schedules`."""
