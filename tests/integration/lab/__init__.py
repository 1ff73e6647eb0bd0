"""Integration tests of `sidecar/lab`."""
