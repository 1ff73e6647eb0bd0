"""Contracts of `sidecar/overflow`."""
