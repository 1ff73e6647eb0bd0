"""Unit tests of `sidecar/demo`."""
