"""Unit tests of `sidecar/operations/renaming`."""
