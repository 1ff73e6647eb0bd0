"""Laws of `sidecar/operations/dead_letters`."""
