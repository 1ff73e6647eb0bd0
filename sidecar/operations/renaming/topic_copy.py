"""Copying a topic record by record, in transactions, so that a copy that was killed goes on where it came to.

Each record of the copy says in a header at which offset it was. Records and header become facts together, and the
producer's transactional id is the rename's: whoever begins it again fences off the one before, reads how far the copy
has come, and goes on behind that. So the copy never has a record twice, nor in another order.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.background import give_up
from sidecar.kafka.client_settings import client_log, copier_settings, reader_settings, uncommitted_reader_settings
from sidecar.kafka.errors import NEW_TOPIC_PASSES
from sidecar.kafka.topic_follower import ANSWER_S, LogUnavailable, read
from sidecar.operations.renaming.errors import RenameError
from sidecar.operations.renaming.group_commits import kafka_failures
from sidecar.operations.renaming.rewriting import Places

HEARD_S: Final = 30.0
AGAIN_S: Final = 0.2
COPIED_FROM: Final = "tickover-copied-from"  # the offset in the topic that was copied, as decimal text
TRANSACTION_S: Final = 10.0
INIT_S: Final = 60.0
PORTION_BYTES_MAX: Final = 16 << 20
NOTHING: Final = -1
OPEN: Final = "a killed process left it, and it ends within 20 s; when it stays, `tickover doctor` says how to end it"

Change = Callable[[bytes, bytes | None, int], bytes | None]  # key, value, the topic's time of it in ms -> value
Progress = Callable[[str, int, int], None]  # topic and partition, how far, of how much


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a partition: its first offset, where readers of committed records end, and where all that is written ends."""

    first: int
    end: int
    written: int


class TopicCopier:
    """Copies, and says how far topics go; it joins no group. `progress` is told after each transaction. Raises
    RenameError.
    """

    def __init__(self, client: Mapping[str, str], transactional_id: str, progress: Progress) -> None:
        log = {"logger": client_log}
        self._producer: Any = Producer({**copier_settings(client, transactional_id), **log})
        self._consumer = Consumer({**reader_settings(client, transactional_id), **log})
        self._anyone = Consumer({**uncommitted_reader_settings(client, transactional_id), **log})
        self._progress = progress

    def begin(self) -> None:
        """Fence off whoever copied under this id before."""
        with kafka_failures("beginning to copy"):
            self._producer.init_transactions(INIT_S)

    def close(self) -> None:
        """Give up what is open: it is aborted by the next one."""
        give_up(self._producer)
        self._consumer.close()
        self._anyone.close()

    def bounds(self, topic: str, partition: int) -> Bounds:
        """Where it begins and ends now."""
        place = TopicPartition(topic, partition)
        with kafka_failures(f"the end of {topic}"):
            first, end = _watermarks(self._consumer, place)
            _, written = _watermarks(self._anyone, place)
        return Bounds(first, end, written)

    def copy(self, names: tuple[str, str], partition: int, change: Change, places: Places) -> Bounds:
        """From the first topic to the second, what isn't there yet; tells `places`. Returns the bounds of the first.

        Raises RenameError also while a transaction is open in it.
        """
        old, new = names
        bounds = self.bounds(old, partition)
        if bounds.written > bounds.end:
            raise RenameError(f"a transaction is open in {old}/{partition}: {OPEN}")
        done = self._copied_before(new, partition, places)
        place = f"{old}/{partition}"
        for messages in self._read(old, partition, max(bounds.first, done + 1), bounds.end):
            for portion in portions(messages):
                self._send((new, partition), portion, change, places)
                self._progress(place, (portion[-1].offset() or 0) + 1, bounds.end)
        return bounds

    def _copied_before(self, topic: str, partition: int, places: Places) -> int:
        """The last offset that has been copied, NOTHING without. What the new group has written itself is behind it."""
        bounds, done = self.bounds(topic, partition), NOTHING
        for messages in self._read(topic, partition, bounds.first, bounds.end):
            for message in messages:
                if (old := copied_from(message)) == NOTHING:
                    return done
                places.copied(old, message.offset() or 0)
                done = old
        return done

    def _read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Message]]:
        try:
            yield from read(self._consumer, (topic, partition), start, end)
        except LogUnavailable as error:
            raise RenameError(f"reading {topic}: {error}") from error

    def _send(self, to: tuple[str, int], messages: Sequence[Message], change: Change, places: Places) -> None:
        topic, partition = to
        offsets: dict[int, int] = {}
        problems: list[str] = []

        def report(error: KafkaError | None, message: Any, old: int) -> None:
            if error is not None:
                problems.append(error.str())
            elif message.offset() is not None:
                offsets[old] = message.offset()

        with kafka_failures(f"writing to {topic}"):
            self._producer.begin_transaction()
            for message in messages:
                old, stamp_ms = message.offset() or 0, max(message.timestamp()[1], 0)
                self._producer.produce(
                    topic, change(message.key() or b"", message.value(), stamp_ms), message.key(), partition,
                    on_delivery=lambda error, sent, old=old: report(error, sent, old), timestamp=stamp_ms,
                    headers=[*_own_headers(message), (COPIED_FROM, str(old).encode())],
                )  # fmt: skip
            self._producer.flush(TRANSACTION_S)
            if len(offsets) < len(messages):
                with suppress(KafkaException):
                    self._producer.abort_transaction(TRANSACTION_S)
                raise RenameError(f"writing to {topic}: {problems[0] if problems else 'no answer'}")
            self._producer.commit_transaction(TRANSACTION_S)
        for old in sorted(offsets):
            places.copied(old, offsets[old])


def copied_from(message: Message) -> int:
    """Where a record of a copy was; NOTHING: it is no copy."""
    for name, value in reversed(list(message.headers() or ())):
        if name == COPIED_FROM and isinstance(value, bytes) and value.isdigit():
            return int(value)
    return NOTHING


def _own_headers(message: Message) -> list[Any]:
    """Without those of an earlier copy: the group may be renamed again."""
    return [header for header in message.headers() or () if header[0] != COPIED_FROM]


def portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """In order, each as large as a transaction takes in its time."""
    begin = size = 0
    for index, message in enumerate(messages):
        length = len(message.value() or b"")
        if index > begin and size + length > PORTION_BYTES_MAX:
            yield messages[begin:index]
            begin, size = index, 0
        size += length
    if messages:
        yield messages[begin:]


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """The first offset and the end. Raises KafkaException, where that may pass after half a minute."""
    deadline_s = time.monotonic() + HEARD_S
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() not in NEW_TOPIC_PASSES or time.monotonic() > deadline_s:
                raise
            time.sleep(AGAIN_S)
