"""Unit tests of `broker/groups`."""
