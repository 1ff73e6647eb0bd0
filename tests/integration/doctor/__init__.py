"""Integration tests of `sidecar/doctor`."""
