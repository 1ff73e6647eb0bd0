"""Topics as tables: read record for record, and the ledger's blocks as what became of each message."""
