"""Laws of `sidecar/overflow`."""
