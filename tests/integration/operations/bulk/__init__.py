"""Integration tests of `sidecar/operations/bulk`."""
