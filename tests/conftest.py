"""Fixtures shared by all tests."""

import os

# testcontainers' own cleaner is another image to pull; the fixtures remove what they start.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from hypothesis import settings

from tests.services.fixtures import each_kafka, kafka, kafka_choice, kafka_place, mock_kafka

__all__ = ["each_kafka", "kafka", "kafka_choice", "kafka_place", "mock_kafka"]

# How long one example takes says something about the machine and its other guests, not about the code.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
