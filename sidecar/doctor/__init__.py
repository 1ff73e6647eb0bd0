"""Checks of all around the process: brokers, topics, Redis, the rights it needs there; and how much a load takes."""
