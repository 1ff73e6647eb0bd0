"""The thread between HTTP requests and librdkafka, with a producer that reports when the test says so."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from api import sender as module
from api.ports import Outgoing, SenderRefused, SenderUnavailable
from api.sender import KafkaSender
from tests.services.waiting import wait_until

RECORD = Outgoing("t", 3, b"k", b"v", [("a", None)], 1_000)


class Reports:
    """A confluent Producer, as far as it is used. Reports are served in `poll`, on the sender's thread."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.produced: list[dict[str, Any]] = []
        self.due: list[tuple[Any, Any]] = []
        self.served = threading.Semaphore(0)
        self.raises: Exception | None = None
        self.topics = {"t": 4}
        self.asked = 0
        self.closed = self.is_lost = False
        self._arrived = threading.Event()

    def __len__(self) -> int:
        return len(self.produced)

    def produce(self, topic: str, value: Any, key: Any, partition: int, **rest: Any) -> None:
        if self.raises is not None:
            raise self.raises
        self.produced.append({"topic": topic, "value": value, "key": key, "partition": partition, **rest})

    def report(self, error: KafkaError | None = None, offset: int | None = 7) -> None:
        message = SimpleNamespace(
            topic=lambda: "t", partition=lambda: 3, offset=lambda: offset, timestamp=lambda: (1, 1_000)
        )
        self.due.append((error, message))
        self._arrived.set()

    def poll(self, seconds: float) -> int:
        self._arrived.wait(seconds)
        self._arrived.clear()
        while self.due:
            error, message = self.due.pop(0)
            record = self.produced.pop(0)
            try:
                record["on_delivery"](error, message)
            finally:
                self.served.release()
        return 0

    def flush(self, seconds: float) -> int:
        return 0

    def purge(self, **_: bool) -> None:
        """Report each record in `produced` as gone."""
        for record in self.produced:
            record["on_delivery"](KafkaError(KafkaError._PURGE_QUEUE), None)
        self.produced.clear()

    def close(self) -> None:
        self.closed = True
        self.due.clear()

    def list_topics(self, timeout: float) -> Any:
        self.asked += 1
        if self.raises is not None:
            raise self.raises
        return SimpleNamespace(
            topics={name: SimpleNamespace(partitions=dict.fromkeys(range(n))) for name, n in self.topics.items()}
        )


async def wait_produced(producer: Reports, count: int) -> None:
    """Let the tasks run until so many records were handed over."""
    while len(producer.produced) < count:  # noqa: ASYNC110 - librdkafka's produce has no signal
        await asyncio.sleep(0)


async def wait_made(producers: list[Reports], count: int) -> None:
    """Let the tasks run until there are so many producers."""
    while len(producers) < count:  # noqa: ASYNC110 - it is made by a call that has no signal
        await asyncio.sleep(0)


@pytest.fixture
def made() -> Iterator[tuple[KafkaSender, Reports]]:
    producers: list[Reports] = []

    def producer(settings: Any) -> Any:
        producers.append(Reports(settings))
        return producers[0]

    sender = KafkaSender({"bootstrap.servers": "b:1", "partitioner": "consistent"}, producer)
    sender.start()
    assert producers == [], "nobody has sent anything"
    sender._producer.current  # noqa: B018 - is made with it
    yield sender, producers[0]
    sender.stop()
    sender.stop()


def test_answers_when_kafka_has_acknowledged(made: tuple[KafkaSender, Reports]) -> None:
    sender, producer = made

    async def send() -> Any:
        task = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producer, 1)
        assert not task.done()
        producer.report()
        return await task

    assert asyncio.run(send()) == ("t", 3, 7, 1_000)
    assert producer.settings["partitioner"] == "murmur2_random"
    assert producer.settings["bootstrap.servers"] == "b:1"


def test_a_cancelled_request_harms_nobody(made: tuple[KafkaSender, Reports], caplog: pytest.LogCaptureFixture) -> None:
    sender, producer = made

    async def send_two() -> Any:
        first = asyncio.create_task(sender.send(RECORD))
        second = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producer, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        producer.report()
        producer.report()
        return await asyncio.wait_for(second, 60)

    assert asyncio.run(send_two()).offset == 7
    assert caplog.text == ""  # the serving thread would survive an error in a report, but would say so


def test_what_the_client_only_infers_is_not_accepted(made: tuple[KafkaSender, Reports]) -> None:
    sender, producer = made

    async def send() -> Any:
        task = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producer, 1)
        producer.report(offset=None)
        return await task

    with pytest.raises(SenderUnavailable, match="has not said"):
        asyncio.run(send())


def test_a_report_after_the_loop_is_gone(made: tuple[KafkaSender, Reports]) -> None:
    sender, producer = made

    async def abandon() -> None:
        task = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producer, 1)
        task.cancel()

    asyncio.run(abandon())
    producer.report()
    assert producer.served.acquire(timeout=60)

    async def send() -> Any:
        task = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producer, 1)
        producer.report()
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(send()).offset == 7


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._MSG_TIMED_OUT, SenderUnavailable),
        (KafkaError.NOT_ENOUGH_REPLICAS, SenderUnavailable),
        (KafkaError.MSG_SIZE_TOO_LARGE, SenderRefused),
    ],
)
def test_failures(made: tuple[KafkaSender, Reports], code: int, expected: type[Exception]) -> None:
    sender, producer = made

    async def send() -> None:
        task = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producer, 1)
        producer.report(KafkaError(code))
        await task

    with pytest.raises(expected):
        asyncio.run(send())
    producer.raises = KafkaException(KafkaError(code))
    with pytest.raises(expected):
        asyncio.run(sender.send(RECORD))


def test_a_full_queue(made: tuple[KafkaSender, Reports]) -> None:
    sender, producer = made
    producer.raises = BufferError()
    with pytest.raises(SenderUnavailable, match="queue is full"):
        asyncio.run(sender.send(RECORD))


def test_partition_counts_are_remembered(made: tuple[KafkaSender, Reports]) -> None:
    sender, producer = made
    assert [asyncio.run(sender.partition_count("t")) for _ in range(3)] == [4, 4, 4]
    assert [asyncio.run(sender.partition_count("other")) for _ in range(3)] == [None] * 3
    assert producer.asked == 1


def test_partition_counts_without_brokers(made: tuple[KafkaSender, Reports]) -> None:
    sender, producer = made
    producer.raises = KafkaException(KafkaError(KafkaError._TRANSPORT))
    with pytest.raises(SenderUnavailable):
        asyncio.run(sender.partition_count("t"))


def test_after_a_fatal_error_of_its_producer_it_sends_with_another() -> None:
    """Such a one takes nothing more, for as long as the process lives; what it had is answered."""
    producers: list[Reports] = []

    def producer(settings: Any) -> Any:
        producers.append(Reports(settings))
        if len(producers) > 1:
            is_renewed.set()
        return producers[-1]

    is_renewed = asyncio.Event()
    sender = KafkaSender({}, producer)
    sender.start()
    sender._producer.current  # noqa: B018 - is made with it

    async def send() -> tuple[Any, Any]:
        first = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producers[0], 1)
        producers[0].raises = KafkaException(KafkaError(KafkaError._FATAL))
        second = asyncio.create_task(sender.send(RECORD))
        await asyncio.wait_for(is_renewed.wait(), 10)
        await wait_produced(producers[1], 1)
        producers[1].report()
        with pytest.raises(SenderUnavailable):
            await first
        return await second, await send_again()

    async def send_again() -> Any:
        third = asyncio.create_task(sender.send(RECORD))
        await wait_produced(producers[1], 1)
        producers[1].report()
        return await third

    assert [one.offset for one in asyncio.run(send())] == [7, 7]
    assert len(producers) == 2
    assert not producers[0].closed, "the thread that serves reports may be in the middle of a call"
    sender.stop()
    assert producers[1].closed


def test_its_producer_is_let_go_when_it_is_idle_and_the_next_record_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    monkeypatch.setattr(module, "POLL_S", 0.01)
    producers: list[Reports] = []

    def producer(settings: Any) -> Any:
        producers.append(Reports(settings))
        return producers[-1]

    sender = KafkaSender({}, producer)
    sender.start()

    async def send(number: int) -> Any:
        task = asyncio.create_task(sender.send(RECORD))
        await wait_made(producers, number)
        await wait_produced(producers[-1], 1)
        assert len(producers) == number, "while one waits for its report, its producer stays"
        producers[-1].report()
        return await asyncio.wait_for(task, 60)

    for number in (1, 2, 3):
        assert asyncio.run(send(number)).offset == 7
        wait_until(lambda: not sender._sending.is_set(), 60)
    sender.stop()
