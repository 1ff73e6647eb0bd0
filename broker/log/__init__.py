"""The log of a partition: segments, indexes, retention, cleaning, checkpoints."""
