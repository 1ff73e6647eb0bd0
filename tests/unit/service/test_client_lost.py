"""The owner of a client that has lost its brokers for good hears of it, and goes on with another."""

import time

import pytest
from confluent_kafka import TopicPartition

from policies.kafka_clients import AdminClient, ClientLost, Consumer, LastingProducer, Producer, living

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}
QUICK_S = 0.05
SOON_S = 30.0


def consumer_of(*places: TopicPartition) -> Consumer:
    consumer = Consumer({**NOBODY, "group.id": "g"})
    consumer.assign(list(places))
    return consumer


def test_every_client_lives_until_it_is_closed() -> None:
    producer, consumer, admin = Producer(NOBODY), consumer_of(), AdminClient(NOBODY)
    assert {producer, consumer, admin} <= set(living())
    producer.close()
    consumer.close()
    assert {producer, consumer, admin} & set(living()) == {admin}


@pytest.mark.parametrize("client", [Producer(NOBODY), AdminClient(NOBODY)])
def test_who_is_free_answers_at_once(client: Producer | AdminClient) -> None:
    assert client.reaches("t", QUICK_S) is False


def test_of_one_that_is_closed_nobody_needs_to_know() -> None:
    producer = Producer(NOBODY)
    producer.close()
    assert producer.reaches("t", QUICK_S) is None


def test_a_consumer_answers_by_its_owners_next_call() -> None:
    consumer = consumer_of()
    assert consumer.reaches("t", QUICK_S) is None
    assert consumer.reaches("t", QUICK_S) is None
    consumer.poll(0)
    assert consumer.reaches("t", QUICK_S) is False
    assert consumer.reaches("t", QUICK_S) is None, "its owner was not asked before that"
    consumer.close()


def test_calls_of_a_lost_consumer_fail_and_another_reads_on() -> None:
    consumer = consumer_of(TopicPartition("t", 1, 7), TopicPartition("t", 2, 9))
    consumer.lose()
    for call in (consumer.poll, consumer.consume, consumer.list_topics):
        with pytest.raises(ClientLost):
            call()
    other = consumer.successor()
    assert {(place.topic, place.partition, place.offset) for place in other.assignment()} == {("t", 1, 7), ("t", 2, 9)}
    assert consumer not in living()
    assert other in living()
    other.close()


def test_nobody_waits_for_the_end_of_a_lost_consumer() -> None:
    consumer = consumer_of()
    consumer.lose()
    began_s = time.monotonic()
    consumer.close()
    assert time.monotonic() - began_s < SOON_S


def test_a_lost_producer_fails_as_by_a_fatal_error() -> None:
    producer = Producer(NOBODY)
    producer.lose()
    with pytest.raises(ClientLost):
        producer.poll(0)


def test_who_sends_now_and_then_takes_another_producer() -> None:
    worn: list[Producer] = []
    lasting = LastingProducer(lambda: Producer(NOBODY), lambda producer, _: worn.append(producer))
    former = lasting.current
    former.lose()
    lasting.poll(0)
    assert lasting.current is not former
    assert worn == [former]
