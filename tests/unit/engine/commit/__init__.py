"""Unit tests of `sidecar/engine/commit`."""
