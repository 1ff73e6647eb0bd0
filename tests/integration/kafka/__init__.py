"""Integration tests of `sidecar/kafka`."""
