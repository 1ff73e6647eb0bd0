"""Unit tests of `sidecar/lookup`."""
