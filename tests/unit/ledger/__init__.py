"""Unit tests of `sidecar/ledger`."""
