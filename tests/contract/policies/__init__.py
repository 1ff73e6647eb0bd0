"""Contracts of `policies`."""
