"""Making emissions facts: commits at least once, and transactions."""
