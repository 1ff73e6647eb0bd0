"""Contracts of `sidecar/conditions`."""
