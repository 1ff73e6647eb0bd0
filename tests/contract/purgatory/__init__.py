"""Contracts of `purgatory`."""
