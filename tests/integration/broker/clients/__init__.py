"""Integration tests of `broker/clients`."""
