"""Unit tests of `policies/topic`."""
