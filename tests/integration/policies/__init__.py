"""Integration tests of `policies`."""
