"""The policy topic: its rule, read and written; the one truth for all replicas."""
