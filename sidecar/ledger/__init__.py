"""The ledger topic, and the metadata of commits, as bytes."""
