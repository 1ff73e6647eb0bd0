"""Integration tests of `broker/groups`."""
