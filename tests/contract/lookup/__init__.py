"""Contracts of `sidecar/lookup`."""
