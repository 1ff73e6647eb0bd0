"""Consumer groups: members, rebalances, committed offsets, the coordinator's log."""
