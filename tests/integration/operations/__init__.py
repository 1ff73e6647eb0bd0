"""Integration tests of `sidecar/operations`."""
