"""Laws of `sidecar/model`."""
