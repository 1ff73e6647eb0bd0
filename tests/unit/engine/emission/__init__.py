"""Unit tests of `sidecar/engine/emission`."""
