"""Contracts of `sidecar/operations`."""
