"""Fixtures shared by all tests."""

import os

# testcontainers' own cleaner is another image to pull; the fixtures remove what they start.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from tests.services.fixtures import each_kafka, kafka, kafka_choice, kafka_place, mock_kafka

__all__ = ["each_kafka", "kafka", "kafka_choice", "kafka_place", "mock_kafka"]
