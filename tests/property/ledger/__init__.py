"""Laws of `sidecar/ledger`."""
