"""Unit tests of `api`."""
