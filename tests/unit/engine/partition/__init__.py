"""Unit tests of `sidecar/engine/partition`."""
