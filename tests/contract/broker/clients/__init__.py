"""Contracts of `broker/clients`."""
