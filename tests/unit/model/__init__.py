"""Unit tests of `sidecar/model`."""
