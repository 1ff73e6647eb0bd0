"""Integration tests of `api/access`."""
