"""Unit tests of `api/access`."""
