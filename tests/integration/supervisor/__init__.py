"""Integration tests of `sidecar/supervisor`."""
