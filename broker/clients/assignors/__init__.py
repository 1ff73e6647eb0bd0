"""Kafka's assignors, which share the partitions of a group out, and Java's order of hash tables."""
