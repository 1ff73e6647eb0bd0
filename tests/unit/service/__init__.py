"""Unit tests of `sidecar/service`."""
