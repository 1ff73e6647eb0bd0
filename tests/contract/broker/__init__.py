"""Contracts of `broker`."""
