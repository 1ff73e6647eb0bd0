"""Contracts of `sidecar/operations/bulk`."""
