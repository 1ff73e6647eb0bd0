"""Topics read in Python: what the client can't give out ends neither the job nor the process."""

import pytest

from tests.services.kafka import Kafka
from tests.services.raw_records import produce_raw

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

MANY = 100  # so often that the interpreter calls the client in its own, specialised way


def test_a_header_name_that_is_no_text_costs_the_headers_of_its_record_alone(kafka: Kafka) -> None:
    from pipeline.ingest.kafka_source import OffsetRange, read_range

    topic = kafka.topic("names")
    kafka.produce(topic, [(b"k", b"good", [("name", b"\xff")]) for _ in range(MANY)])
    produce_raw(kafka.bootstrap, topic, b"bad", [(b"\xff", b"value")])
    kafka.produce(topic, [(b"k", b"good", [("name", None)])])
    batches = read_range({"bootstrap.servers": kafka.bootstrap}, OffsetRange(topic, 0, 0, MANY + 2))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rows] == [b"good"] * MANY + [b"bad", b"good"]
    assert [row["headers"] for row in rows[-3:]] == [
        [{"key": "name", "value": b"\xff"}],
        [{"key": "\ufffd", "value": None}],  # it had some, as Spark's connector would say
        [{"key": "name", "value": None}],
    ]
