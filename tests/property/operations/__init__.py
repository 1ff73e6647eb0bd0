"""Laws of `sidecar/operations`."""
