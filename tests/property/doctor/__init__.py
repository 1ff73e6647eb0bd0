"""Laws of `sidecar/doctor`."""
