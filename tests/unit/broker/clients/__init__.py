"""Unit tests of `broker/clients`."""
