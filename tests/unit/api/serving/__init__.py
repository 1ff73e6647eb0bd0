"""Unit tests of `api/serving`."""
