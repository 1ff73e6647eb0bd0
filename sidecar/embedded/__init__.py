"""Servers that tickover can bring along: a Kafka and a Valkey, for trying out and for tests."""
