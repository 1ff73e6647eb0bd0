"""Unit tests of `sidecar/engine`."""
