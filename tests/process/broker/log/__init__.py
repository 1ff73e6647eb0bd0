"""Tests, with processes and sockets, of `broker/log`."""
