"""Tests, with processes and sockets, of `broker/clients/consumer`."""
