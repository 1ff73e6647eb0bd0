"""Unit tests of `sidecar/kafka`."""
