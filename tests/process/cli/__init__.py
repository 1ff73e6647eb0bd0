"""Tests, with processes and sockets, of `sidecar/cli`."""
