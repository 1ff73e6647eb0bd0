"""Integration tests of `api`."""
