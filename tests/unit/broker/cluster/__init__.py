"""Unit tests of `broker/cluster`."""
