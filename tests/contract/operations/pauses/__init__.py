"""Contracts of `sidecar/operations/pauses`."""
