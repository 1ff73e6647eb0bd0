"""Integration tests of `sidecar/conditions`."""
