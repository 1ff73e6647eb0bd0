"""Events: what has changed, found by comparing snapshots, kept in a ring, and followed by who listens."""
