"""Unit tests of `sidecar/operations/jobs`."""
