"""Contracts of `sidecar/kafka`."""
