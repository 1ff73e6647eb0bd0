"""Contracts of `policies/topic`."""
