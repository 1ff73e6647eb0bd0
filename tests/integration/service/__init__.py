"""Integration tests of `sidecar/service`."""
