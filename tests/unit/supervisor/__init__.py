"""Unit tests of `sidecar/supervisor`."""
