"""Contracts of `purgatory/timer`."""
