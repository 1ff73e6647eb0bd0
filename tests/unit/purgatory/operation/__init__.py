"""Unit tests of `purgatory/operation`."""
