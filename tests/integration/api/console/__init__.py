"""Integration tests of `api/console`."""
