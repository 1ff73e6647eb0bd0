"""Unit tests of `sidecar/cli/about`."""
