"""Unit tests of `sidecar/operations/dead_letters`."""
