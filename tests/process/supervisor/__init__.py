"""Tests of `sidecar/supervisor` that start processes."""
