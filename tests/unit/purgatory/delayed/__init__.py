"""Unit tests of `purgatory/delayed`."""
