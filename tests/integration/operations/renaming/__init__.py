"""Integration tests of `sidecar/operations/renaming`."""
