"""Integration tests of `sidecar/overflow`."""
