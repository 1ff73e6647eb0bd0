"""Tests, with processes and sockets, of `api/serving`."""
