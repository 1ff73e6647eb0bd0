"""The reader of the ledger on a mock cluster and on a real broker: what is committed becomes a receipt."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from policies.kafka_clients import Consumer, living
from sidecar.ledger.block import encode
from sidecar.lookup.ledger_reader import LedgerReader
from sidecar.lookup.receipts import Receipts, ReceiptsUnavailable
from sidecar.model.record import Outcome, Place
from tests.services.kafka import Kafka
from tests.services.mock_kafka import MockKafka
from tests.services.waiting import wait_until
from tests.unit.lookup.test_receipts import EMPTY, block, emitted, wait_until_asked

pytestmark = pytest.mark.slow

ANSWER_S = 90.0
LOOK_BACK_MS = 600_000


def place(offset: int) -> Place:
    return Place("reminders", 3, offset)


@contextmanager
def following(bootstrap: str, topic: str, look_back_ms: int = LOOK_BACK_MS) -> Iterator[Receipts]:
    receipts = Receipts(1 << 20)
    reader = LedgerReader({"bootstrap.servers": bootstrap}, topic, receipts, look_back_ms)
    reader.start()
    try:
        yield receipts
    finally:
        reader.stop()
        reader.stop()
        assert "api-ledger" not in {thread.name for thread in threading.enumerate()}


def wait(receipts: Receipts, condition: Callable[[], object]) -> None:
    wait_until(lambda: bool(condition()), ANSWER_S, lambda: f"in vain; the receipts say {receipts.trouble!r}")


def produce(bootstrap: str, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, b"reminders/3", partition)
    assert producer.flush(ANSWER_S) == 0


def test_what_is_written_while_it_follows_answers_those_who_wait(kafka_place: tuple[str, str]) -> None:
    bootstrap, topic = kafka_place
    produce(bootstrap, topic, block(emitted(1)))  # the mock cluster makes topics of what is produced
    with following(bootstrap, topic) as receipts, asyncio.Runner() as runner:
        wait(receipts, lambda: receipts.trouble == "")

        async def ask():
            waiting = asyncio.create_task(receipts.outcome(place(8), ANSWER_S))
            await wait_until_asked(receipts)
            await asyncio.to_thread(produce, bootstrap, topic, b"garbage", block({8: Outcome.CANCELLED}), partition=2)
            return await waiting

        found = runner.run(ask())
        assert (found.outcome, found.ledger[:2]) == (Outcome.CANCELLED, (2, 1))
    with pytest.raises(ReceiptsUnavailable):
        asyncio.run(receipts.outcome(place(99), ANSWER_S))


def lose_consumers() -> None:
    """As `LostClients` does with those that reach no broker any more."""
    for client in living():
        if isinstance(client, Consumer):
            client.lose()


def test_another_client_reads_on_where_one_was_lost(mock_kafka: MockKafka) -> None:
    bootstrap, topic = mock_kafka.bootstrap, "lost"
    produce(bootstrap, topic, block(emitted(1)))
    with following(bootstrap, topic) as receipts, asyncio.Runner() as runner:
        wait(receipts, lambda: receipts.trouble == "")
        lose_consumers()

        async def ask():
            waiting = asyncio.create_task(receipts.outcome(place(8), ANSWER_S))
            await wait_until_asked(receipts)
            await asyncio.to_thread(produce, bootstrap, topic, block({8: Outcome.CANCELLED}))
            return await waiting

        assert runner.run(ask()).outcome == Outcome.CANCELLED


def test_brokers_that_do_not_answer_are_asked_again() -> None:
    with following("127.0.0.1:1", "ledger") as receipts:
        wait(receipts, lambda: "no answer about ledger" in receipts.trouble)
        with pytest.raises(ReceiptsUnavailable, match="no answer"):
            asyncio.run(receipts.outcome(place(1), ANSWER_S))


def test_a_newer_version_ends_the_receipts_and_nothing_else(mock_kafka: MockKafka) -> None:
    produce(mock_kafka.bootstrap, "ledger", block(emitted(1)))
    with following(mock_kafka.bootstrap, "ledger") as receipts:
        wait(receipts, lambda: receipts.trouble == "")
        produce(mock_kafka.bootstrap, "ledger", block(emitted(2)), b"TL\xff\x00")
        wait(receipts, lambda: "upgrade" in receipts.trouble)
        assert receipts.settlement(place(2)) is not None
        with pytest.raises(ReceiptsUnavailable, match="version 255"):
            asyncio.run(receipts.outcome(place(3), ANSWER_S))


@pytest.mark.integration
def test_what_was_written_a_while_ago_is_read_again_and_older_is_not(kafka: Kafka) -> None:
    topic = kafka.topic("ledger")
    now_ms = time.time_ns() // 1_000_000
    old, fresh = (block(emitted(offset), {offset: f"id-{offset}"}) for offset in (1, 2))
    kafka.produce(topic, [(b"k", old, (), now_ms - 2 * LOOK_BACK_MS), (b"k", fresh, (), now_ms)])
    with following(kafka.bootstrap, topic) as receipts:
        wait(receipts, lambda: receipts.settlements("id-2"))
        assert receipts.settlements("id-1") == []


@pytest.mark.integration
def test_what_was_aborted_is_no_receipt(kafka: Kafka) -> None:
    topic = kafka.topic("ledger")
    with following(kafka.bootstrap, topic) as receipts:
        wait(receipts, lambda: receipts.trouble == "")
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}.writer"})
        producer.init_transactions(ANSWER_S)
        for outcome, finish in (
            (Outcome.EMITTED, producer.abort_transaction),
            (Outcome.CANCELLED, producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.produce(topic, block({8: outcome}, {8: "a"}), b"k", 0)
            producer.flush(ANSWER_S)
            finish(ANSWER_S)
        wait(receipts, lambda: receipts.settlements("a"))
        assert [row.outcome for row in receipts.settlements("a")] == [Outcome.CANCELLED]
    with following(kafka.bootstrap, topic) as receipts:  # what comes last is a marker, which no reader is given
        wait(receipts, lambda: receipts.trouble == "")


@pytest.mark.integration
def test_a_start_behind_much_says_so_until_it_has_caught_up(kafka: Kafka) -> None:
    topic = kafka.topic("ledger")
    kafka.produce(topic, [(b"k", block({offset: Outcome.APPLIED})) for offset in range(2_000)])
    with following(kafka.bootstrap, topic) as receipts:
        wait(receipts, lambda: receipts.trouble == "")
        assert receipts.settlement(place(1_999)) is not None


def test_an_empty_block_is_read_over(mock_kafka: MockKafka) -> None:
    produce(mock_kafka.bootstrap, "ledger", block(emitted(1)))
    with following(mock_kafka.bootstrap, "ledger") as receipts:
        wait(receipts, lambda: receipts.trouble == "")
        produce(mock_kafka.bootstrap, "ledger", encode(replace(EMPTY, number=9)), b"", block(emitted(2)))
        wait(receipts, lambda: receipts.settlement(place(2)))
