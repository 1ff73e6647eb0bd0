"""Checks of everything around the process: brokers, topics, Redis, and the rights it needs there."""
