"""Tests, with processes and sockets, of the repository itself: what is written, built and released."""
