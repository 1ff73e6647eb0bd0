"""Integration tests of `sidecar/engine/intake`."""
