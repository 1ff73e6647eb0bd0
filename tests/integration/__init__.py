"""On real Kafka and real Redis."""
