"""Unit tests of `broker`."""
