"""Contracts of `api`."""
