"""Unit tests of the repository itself: what is written, built and released."""
