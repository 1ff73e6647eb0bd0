"""Laws of `sidecar/engine/partition`."""
