"""Unit tests of `sidecar/operations/bulk`."""
