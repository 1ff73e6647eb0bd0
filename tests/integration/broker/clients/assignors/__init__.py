"""Integration tests of `broker/clients/assignors`."""
