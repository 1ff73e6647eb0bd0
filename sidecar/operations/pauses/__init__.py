"""Pauses of policies, sources, targets and schedules: their topic, which all replicas read."""
