"""Integration tests of `broker`."""
