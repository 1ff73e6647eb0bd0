"""Brokers together: the controller, metadata, elections, replicas that follow."""
