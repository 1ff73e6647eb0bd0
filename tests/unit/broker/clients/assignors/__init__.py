"""Unit tests of `broker/clients/assignors`."""
