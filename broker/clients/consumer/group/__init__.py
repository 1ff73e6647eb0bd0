"""A consumer as member of a group: joining, heartbeats, rebalances, committed offsets."""
