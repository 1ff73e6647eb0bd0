"""Unit tests of `sidecar/overflow`."""
