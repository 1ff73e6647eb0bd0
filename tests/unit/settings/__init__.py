"""Unit tests of `sidecar/settings`."""
