"""Contracts of `broker/clients/producer`."""
