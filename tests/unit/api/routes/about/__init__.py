"""Unit tests of `api/routes/about`."""
