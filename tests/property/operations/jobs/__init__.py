"""Laws of `sidecar/operations/jobs`."""
