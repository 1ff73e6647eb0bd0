"""Integration tests of `sidecar/engine/emission`."""
