"""Ends transactions whose markers Kafka forgot, as their coordinator had decided: what an operator has to do.

A broker of 4.1 to 4.3 that was killed while it ended a transaction may take partitions that have no leader yet for
deleted ones, and then tells them nothing (KAFKA-20734). Only for a single broker: it leads everything.
"""

from struct import Struct
from typing import Final, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.transactions.transaction import TransactionState
from purgatory.errors import Errors
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until

STATE_TOPIC: Final = "__transaction_state"
# How a value begins, in both of its versions: version, producer id, epoch, timeout, state.
HEAD: Final = Struct(">hqhxxxxb")
COMPLETED: Final[dict[int, bool]] = {TransactionState.COMPLETE_COMMIT: True, TransactionState.COMPLETE_ABORT: False}


class Open(NamedTuple):
    """A transaction that has no end in a partition."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start: int


def end_hanging_transactions(kafka: Kafka) -> list[Open]:
    """End what hangs, until all transactions that are open now have ended, one way or the other; returns what hung."""
    ended: list[Open] = []
    with RawClient(kafka.bootstrap) as client:
        suspects = _open(kafka, client)

        def decided() -> bool:
            if suspects:
                completed = _completed(kafka)
                suspects.intersection_update(_open(kafka, client))  # after the decision: no marker is on its way
                hanging = [one for one in suspects if (one.producer_id, one.producer_epoch) in completed]
                told = [one for one in hanging if _write_marker(client, one, completed[one[2:4]])]
                ended.extend(told)
                suspects.difference_update(told)
            return not suspects

        wait_until(decided, otherwise=lambda: f"transactions stay open: {suspects}")
    return ended


def _open(kafka: Kafka, client: RawClient) -> set[Open]:
    topics = kafka.admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
    asked = [{"name": name, "partition_indexes": list(topic.partitions)} for name, topic in topics.items()]
    answer = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)
    return {
        Open(
            topic.name,
            partition.partition_index,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        )
        for topic in answer.topics
        for partition in topic.partitions
        for producer in partition.active_producers
        if producer.current_txn_start_offset >= 0
    }


def _completed(kafka: Kafka) -> dict[tuple[int, int], bool]:
    """Producer id and epoch of those whose last transaction is over, and whether it was committed."""
    last: dict[bytes, tuple[int, int, int]] = {}
    for record in kafka.read_all(STATE_TOPIC):
        key, value = record.key(), record.value()
        if key and value:
            last[key] = HEAD.unpack_from(value)[1:4]
    states = {(producer_id, epoch): state for producer_id, epoch, state in last.values()}
    return {producer: COMPLETED[state] for producer, state in states.items() if state in COMPLETED}


def _write_marker(client: RawClient, one: Open, committed: bool) -> bool:
    """False: the broker has just started, and doesn't lead the partition yet."""
    marker = {
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "transaction_result": committed,
        "topics": [{"name": one.topic, "partition_indexes": [one.partition]}],
        "coordinator_epoch": one.coordinator_epoch,
    }
    [answer] = client.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker]).markers
    [partition] = answer.topics[0].partitions
    assert partition.error_code in (Errors.NONE, Errors.NOT_LEADER_OR_FOLLOWER), f"{one}: {partition.error_code}"
    return bool(partition.error_code == Errors.NONE)
