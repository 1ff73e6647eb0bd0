"""Laws of `sidecar/conditions`."""
