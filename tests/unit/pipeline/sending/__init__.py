"""Unit tests of `pipeline/sending`."""
