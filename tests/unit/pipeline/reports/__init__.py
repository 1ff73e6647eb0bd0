"""Unit tests of `pipeline/reports`."""
