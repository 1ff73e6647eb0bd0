"""Rows sent to Kafka, each once: scheduling and redriving at scale."""
