"""Unit tests of `sidecar/conditions`."""
