"""Promises of an interface, asked of each of its implementations."""
