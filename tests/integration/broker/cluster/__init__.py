"""Integration tests of `broker/cluster`."""
