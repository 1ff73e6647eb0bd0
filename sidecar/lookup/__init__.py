"""Looking up held messages, and what became of the others."""
