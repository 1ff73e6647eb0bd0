"""Unit tests of `sidecar/operations`."""
