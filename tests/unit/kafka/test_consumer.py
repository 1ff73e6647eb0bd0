"""Offsets that a log doesn't have, and what the consumer makes of them."""

import time
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from policies.kafka_clients import ClientLost
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


def record_at(offset: int) -> Mock:
    """A record of the lane."""
    return Mock(**{"offset.return_value": offset, "error.return_value": None})


def test_the_record_that_ended_a_wait_is_given_first_and_once() -> None:
    intake = intake_of(0, None)
    consumer: Any = intake._consumer
    first, second = record_at(7), record_at(8)
    consumer.poll.return_value = first
    consumer.consume.side_effect = [[second], []]
    assert intake.wait(0.5)
    assert intake.wait(0.5), "it is still there"
    consumer.poll.assert_called_once_with(0.5)
    assert intake.take(10) == [first, second]
    assert [call.args for call in consumer.consume.call_args_list] == [(9, 0)], "no more than were asked for"
    assert intake.take(10) == []


def test_an_error_that_ended_a_wait_is_seen_to_as_any_other() -> None:
    intake = intake_of(200, 100)
    consumer: Any = intake._consumer
    consumer.poll.return_value, consumer.consume.return_value = consumer.consume.return_value[0], []
    assert intake.wait(0.5)
    assert intake.take(10) == []
    assert consumer.seek.called


def test_a_wait_in_which_nothing_came_says_so() -> None:
    intake = intake_of(0, None)
    consumer: Any = intake._consumer
    consumer.poll.return_value = None
    assert not intake.wait(0.5)


def test_a_rebalance_ends_the_rest_of_who_waits() -> None:
    intake = intake_of(0, None)
    consumer: Any = intake._consumer
    intake.subscribe(["in"])
    assigned = consumer.subscribe.call_args.kwargs["on_assign"]
    consumer.poll.side_effect = lambda _: assigned(consumer, [ClientPartition(*LANE)])
    assert intake.wait(0.5)
    consumer.poll.side_effect = lambda _: None
    assert not intake.wait(0.5)


def test_what_a_former_consumer_had_read_is_not_given_by_the_next() -> None:
    intake = intake_of(0, None)
    consumer: Any = intake._consumer
    consumer.poll.return_value = record_at(7)
    consumer.consume.side_effect = KafkaException(KafkaError(KafkaError._FATAL))
    assert intake.wait(0.5)
    intake._lost_at_s, consumer.close.__name__ = time.monotonic(), "close"
    assert intake.take(10) == []
    assert intake._consumer is not consumer
    assert intake.take(10) == []
    intake.close()


def test_another_takes_the_place_of_a_consumer_that_has_lost_its_brokers() -> None:
    intake = intake_of(0, None)
    lost: Any = intake._consumer
    lost.consume.side_effect = ClientLost()
    lost.close.__name__ = "close"  # the thread in which it ends is called so
    assert intake.take(10) == []
    assert intake._consumer is not lost
    intake.close()
