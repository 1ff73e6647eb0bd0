"""Fixtures that several contracts share."""

import pytest

from tests.services.kafka import Kafka


@pytest.fixture(params=["reference", pytest.param("real", marks=pytest.mark.integration)])
def cluster(request: pytest.FixtureRequest) -> Kafka:
    """The reference broker and a real one in turn."""
    if request.param == "real":
        found: Kafka = request.getfixturevalue("kafka")
        return found
    choice = request.getfixturevalue("kafka_choice")
    kafka: Kafka = choice.kind("reference")
    return kafka
