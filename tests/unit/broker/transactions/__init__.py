"""Unit tests of `broker/transactions`."""
