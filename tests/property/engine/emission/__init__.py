"""Laws of `sidecar/engine/emission`."""
