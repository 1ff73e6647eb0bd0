"""Laws of `sidecar/operations/schedules`."""
