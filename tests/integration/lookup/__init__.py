"""Integration tests of `sidecar/lookup`."""
