"""Unit tests of `policies`."""
