"""Integration tests of `sidecar/demo`."""
