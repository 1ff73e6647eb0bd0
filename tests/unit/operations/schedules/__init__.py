"""Unit tests of `sidecar/operations/schedules`."""
