"""The engine's producers over confluent-kafka: how they tell of what they don't survive."""

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sidecar.engine.commit.interval import CommitInterval
from sidecar.kafka.errors import raising_what_is_meant
from sidecar.kafka.transactions import KafkaOutputs
from sidecar.ledger.commit_metadata import METADATA_BYTES_MAX
from sidecar.model.ports import Member
from sidecar.model.record import TopicPartition
from tests.services.reference_broker import ReferenceBroker

pytestmark = pytest.mark.slow

ANSWER_S = 60.0
TOPIC = "orders"
PARTITIONS = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ReferenceBroker]:
    broker = ReferenceBroker(tmp_path).start()
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(ANSWER_S)
    yield broker
    broker.stop()


@pytest.fixture
def ending(broker: ReferenceBroker) -> Iterator[ExitStack]:
    """Stack of all that is to be ended before the broker."""
    with ExitStack() as stack:
        yield stack


def serve_for_ever(call: Callable[[float], int]) -> NoReturn:
    while True:
        call(ANSWER_S)


@pytest.mark.parametrize("serving", ["poll", "flush"])
def test_who_is_fenced_off_says_so_whatever_reports_come_with_it(
    broker: ReferenceBroker, ending: ExitStack, serving: str
) -> None:
    outputs = KafkaOutputs({"bootstrap.servers": broker.bootstrap}, "group.0", lambda problem: None)
    fenced, other = outputs.output("a"), outputs.output("a")
    ending.callback(fenced.close)
    ending.callback(other.close)
    reports: list[KafkaError | None] = []
    call: Callable[[float], int] = getattr(fenced, serving)

    def produce(count: int) -> None:
        for _ in range(count):
            fenced.produce(TOPIC, bytes(1000), None, -1, lambda error, _record: reports.append(error), None, 0, [])

    fenced.init(ANSWER_S)
    fenced.begin()
    produce(1)
    assert fenced.flush(ANSWER_S) == 0
    other.init(ANSWER_S)
    with suppress(KafkaException):  # on a busy machine the client may know before it has them all
        produce(500)

    with pytest.raises(KafkaException, match="fenced by newer producer") as raised:
        serve_for_ever(call)

    assert raised.value.args[0].fatal()


def test_what_the_client_raises_while_it_reports_is_told_in_its_own_words() -> None:
    """The client leaves its exception set and calls the next report, of which the interpreter makes a SystemError."""
    meant = KafkaException(KafkaError(KafkaError._FENCED, fatal=True))

    def serve(_seconds: float) -> int:
        raise SystemError("returned a result with an exception set") from meant

    with pytest.raises(KafkaException) as raised:
        raising_what_is_meant(serve)(0)

    assert raised.value is meant


def test_what_the_client_raises_while_it_logs_is_told_as_fatal_without_its_words() -> None:
    """The client leaves its exception set and looks for the logger's method, which then isn't found: seen once."""

    def serve(_seconds: float) -> int:
        raise AttributeError("has no attribute 'log'", name="log", obj=logging.getLogger("client"))

    with pytest.raises(KafkaException, match="its line in the log says more") as raised:
        raising_what_is_meant(serve)(0)

    assert raised.value.args[0].fatal()


def test_an_error_of_the_interpreter_that_is_not_the_client_s_stays_what_it_is() -> None:
    def serve(_seconds: float) -> int:
        raise SystemError("something else") from ValueError()

    with pytest.raises(SystemError, match="something else"):
        raising_what_is_meant(serve)(0)


def test_a_producer_whose_records_have_no_report_ends_with_its_last_use(broker: ReferenceBroker) -> None:
    """The client holds the callbacks of its records, and through them itself: no collector sees that circle."""
    output = KafkaOutputs({"bootstrap.servers": broker.bootstrap}, "group.0", lambda problem: None).output("a")
    output.init(ANSWER_S)
    output.begin()
    broker.stop()
    interval = CommitInterval(output)
    output.produce(TOPIC, b"value", None, -1, interval.report, None, 0, [])
    gone = weakref.ref(output)

    output.give_up()
    del output, interval

    assert gone() is None


def test_offsets_of_many_partitions_are_committed_whatever_they_carry(
    broker: ReferenceBroker, ending: ExitStack
) -> None:
    """Brokers write those of a request as one batch, which has the limit of a record."""
    topic = "t" * 249
    client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(ANSWER_S)
    consumer = Consumer({**client, "group.id": "group"})
    ending.callback(consumer.close)
    output = KafkaOutputs(client, "group.0", lambda problem: None).output("a")
    ending.callback(output.close)
    output.init(ANSWER_S)
    output.begin()
    offsets = {
        TopicPartition(topic, partition): (partition, "m" * METADATA_BYTES_MAX) for partition in range(PARTITIONS)
    }
    output.send_offsets(offsets, Member(consumer.consumer_group_metadata(), True), ANSWER_S)
    output.commit(ANSWER_S)
    places = [ClientPartition(topic, partition) for partition in range(PARTITIONS)]
    committed = consumer.committed(places, ANSWER_S)
    assert [one.offset for one in committed] == list(range(PARTITIONS))
