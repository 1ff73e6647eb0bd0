"""Unit tests of `purgatory/partition`."""
