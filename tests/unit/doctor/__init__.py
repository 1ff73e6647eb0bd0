"""Unit tests of `sidecar/doctor`."""
