"""Unit tests of `broker/log`."""
