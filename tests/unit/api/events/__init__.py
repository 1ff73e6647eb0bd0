"""Events: the ring and who listens."""
