"""Unit tests of `sidecar/operations/pauses`."""
