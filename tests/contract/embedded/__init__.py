"""Contracts of `sidecar/embedded`."""
