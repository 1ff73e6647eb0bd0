"""Tests, with processes, of `api/routes`."""
