"""Unit tests of `purgatory/timer`."""
