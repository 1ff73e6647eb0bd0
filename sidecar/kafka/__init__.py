"""Kafka's clients behind the engine's ports: consumer, producers, committed offsets, topics."""
