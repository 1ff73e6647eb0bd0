"""Integration tests of `sidecar/engine/commit`."""
