"""Unit tests of `api/routes`."""
