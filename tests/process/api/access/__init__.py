"""Tests, with processes and sockets, of `api/access`."""
