"""Kafka's wire protocol: messages, their versions, connections, the server."""
