"""Contracts of `broker/clients/consumer`."""
