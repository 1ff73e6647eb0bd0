"""Unit tests of `sidecar/engine/intake`."""
