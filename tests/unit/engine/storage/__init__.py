"""Unit tests of `sidecar/engine/storage`."""
