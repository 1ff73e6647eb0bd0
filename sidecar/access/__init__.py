"""What tickover must be allowed to do in Kafka and Redis: no more, no less."""
