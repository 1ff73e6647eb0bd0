"""Contracts of `broker/clients/consumer/group`."""
