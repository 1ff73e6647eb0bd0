"""Integration tests of `sidecar/operations/schedules`."""
