"""Laws of `sidecar/engine/intake`."""
