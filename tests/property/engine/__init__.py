"""Laws of `sidecar/engine`."""
