"""Rights that tickover needs in Kafka and Redis: no more, no less."""
