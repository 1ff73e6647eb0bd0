"""Unit tests of `pipeline`."""
