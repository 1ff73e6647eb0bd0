"""Contracts of `sidecar/doctor`."""
