"""Integration tests of `sidecar/engine`."""
