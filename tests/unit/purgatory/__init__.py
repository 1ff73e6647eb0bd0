"""Unit tests of `purgatory`."""
