"""Offsets that a log doesn't have, and what the consumer makes of them."""

from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from sidecar.kafka.consumer import KafkaIntake
from sidecar.model.record import TopicPartition

LANE = TopicPartition("in", 3)


def intake_of(first: int, wanted: int | None) -> KafkaIntake:
    """An intake whose consumer has one such error, at `wanted`, of a log that begins with `first`."""
    intake = KafkaIntake({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": "0"}, lambda problem: None)
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
    message = Mock(**{"topic.return_value": LANE.topic, "partition.return_value": LANE.partition})
    message.offset.return_value, message.error.return_value = wanted, error
    consumer: Any = Mock(**{"consume.return_value": [message], "get_watermark_offsets.return_value": (first, 500)})
    intake._consumer, intake.events = consumer, Mock()
    return intake


@pytest.mark.parametrize("wanted", [None, 100], ids=["another leader", "behind the end"])
def test_a_log_that_was_cut_back_is_not_taken_for_one_whose_beginning_retention_took(wanted: int | None) -> None:
    intake = intake_of(0, wanted)
    assert intake.take(10) == []
    events: Any = intake.events
    events.out_of_range.assert_called_once_with(LANE)
    consumer: Any = intake._consumer
    consumer.seek.assert_not_called()


def test_what_retention_took_before_it_was_read_is_passed_over() -> None:
    intake = intake_of(200, 100)
    assert intake.take(10) == []
    events: Any = intake.events
    events.out_of_range.assert_not_called()
    consumer: Any = intake._consumer
    [[place]] = [call.args for call in consumer.seek.call_args_list]
    assert (place, place.offset) == (ClientPartition(*LANE), 200)


def test_a_right_that_is_missing_is_told_whoever_says_so() -> None:
    intake = intake_of(0, None)
    consumer: Any = intake._consumer
    [message] = consumer.consume.return_value
    message.error.return_value = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "Subscribed topic not available")
    assert intake.take(10) == []
    events: Any = intake.events
    events.unreadable.assert_called_once_with(LANE.topic, "Subscribed topic not available")


def test_of_a_partition_that_is_not_begun_yet_nothing_is_made() -> None:
    intake = intake_of(0, None)
    intake._unread.add(LANE)
    assert intake.take(10) == []
    events: Any = intake.events
    events.out_of_range.assert_not_called()
