"""Contracts of `sidecar/operations/renaming`."""
