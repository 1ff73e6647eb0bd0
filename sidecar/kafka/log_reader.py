"""Reading sources again, and the ledger, beside the group: consumers of their own, each for one thread.

A rebuild wants a source's records by offset, in ascending bunches. The log is read straight on, and only a gap that
would take longer to read than to jump over is jumped over. A recovery reads partitions of the ledger to their ends.
"""

import logging
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from policies.kafka_clients import Consumer, batch, is_fatal
from sidecar.kafka.client_settings import (
    ANSWER_TIMEOUT_S,
    client_log,
    ledger_log_settings,
    source_log_settings,
    uncommitted_ledger_settings,
)
from sidecar.kafka.errors import UNKNOWN_PLACE, words_of
from sidecar.ledger.topic import LedgerError, LedgerRecord, LedgerUnavailable
from sidecar.model.ports import SourceRecord, SourceUnavailable
from sidecar.model.record import TopicPartition

log = logging.getLogger(__name__)

READ_BATCH: Final = 1_000
LEDGER_BATCH: Final = 500
READ_WAIT_S: Final = 0.05
STALLED_READS_MAX: Final = 300  # reads in a row without a record, each READ_WAIT_S long: the ledger is cut short
GONE_S: Final = 5.0  # for how long brokers say that they don't know the ledger before it is taken to be deleted
GAP_MAX: Final = 10_000  # offsets: a jump costs as much as reading so many


class KafkaSourceLog:
    """`SourceLog` over a consumer that never joins a group. Blocking; for one thread."""

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        self._settings = {**source_log_settings(client, group), "logger": client_log}
        self._consumer: Consumer | None = None
        self._lane: TopicPartition | None = None
        self._position = 0  # every record below was read
        self._end = -1  # of the log, when it was reached
        self._ahead: deque[Message] = deque()  # read, and beyond what was wanted

    def fetch(self, lane: TopicPartition, offsets: Sequence[int]) -> dict[int, SourceRecord]:
        """See `SourceLog.fetch`."""
        found: dict[int, SourceRecord] = {}
        try:
            for first, last in _runs(offsets):
                self._go_to(lane, first)
                self._read(frozenset(offsets), last, found)
        except KafkaException as error:
            self._lane = self._consumer = None  # it may believe for minutes what a starting broker said of a topic
            raise SourceUnavailable(f"no answer about {lane}: {words_of(error.args[0])}") from error
        return found

    def release(self) -> None:
        """See `SourceLog.release`."""
        self._lane = None
        self._ahead.clear()
        if self._consumer is not None:
            self._consumer.unassign()

    def close(self) -> None:
        """Twice is harmless."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _go_to(self, lane: TopicPartition, offset: int) -> None:
        """Be ready to read at `offset`, or at the log's start where that is later."""
        next_read = (self._ahead[0].offset() or 0) if self._ahead else self._position
        if self._lane == lane and next_read <= offset <= next_read + GAP_MAX:
            return
        consumer = self._open()
        place = ClientPartition(*lane)
        first, end = consumer.get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
        self._position, self._end = min(max(offset, first), end), -1
        self._ahead.clear()
        consumer.assign([ClientPartition(*lane, self._position)])
        self._lane = lane

    def _read(self, wanted: frozenset[int], last: int, found: dict[int, SourceRecord]) -> None:
        """Read up to `last`, or to the end of the log."""
        ahead = self._ahead
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            while ahead and (offset := ahead[0].offset() or 0) <= last:
                message = ahead.popleft()
                if offset in wanted:
                    found[offset] = message
            if ahead or self._position > last or self._position == self._end:
                return
            messages = batch(self._open(), READ_BATCH, READ_WAIT_S)
            for message in messages:
                if message.error() is None:
                    ahead.append(message)
                    self._position = (message.offset() or 0) + 1
                else:
                    self._heed(message)
            if messages:
                deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
            elif time.monotonic() > deadline_s:
                lane, self._lane = self._lane, None
                raise SourceUnavailable(f"no records of {lane} from offset {self._position} on")

    def _heed(self, message: Message) -> None:
        """An error among the messages, or the end of the log: what is wanted was written long ago."""
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            self._position = self._end = max(self._position, message.offset() or 0)
        elif is_fatal(error):
            raise KafkaException(error)
        elif (
            error.code() == KafkaError._AUTO_OFFSET_RESET and self._lane is not None
        ):  # retention is taking it just now
            lane, self._lane = self._lane, None
            self._go_to(lane, self._position)
        else:
            log.warning("reading a source again", extra={"error": str(error)})

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        return self._consumer


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run without a gap that is worth a jump."""
    first = offsets[0]
    for before, after in pairwise(offsets):
        if after - before > GAP_MAX:
            yield first, before
            first = after
    yield first, offsets[-1]


class KafkaLedgerLog:
    """Reads ledger partitions for a recovery. Blocking; used by the recovery thread alone."""

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._client = dict(client)
        self._consumer: Consumer | None = None
        self._absent_since_s: float | None = None  # monotonic; since when the brokers have said so each time

    def bounds(self, partition: int) -> tuple[int, int]:
        """(first offset still there, next offset to be written)."""
        try:
            low, high = self._open().get_watermark_offsets(
                ClientPartition(self._topic, partition), timeout=ANSWER_TIMEOUT_S
            )
        except KafkaException as error:
            raise self._no_answer(error.args[0], f"{self._topic}/{partition}") from error
        self._absent_since_s = None
        return low, high

    def _written_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Where these partitions end, whether readers of committed records may see it yet or not."""
        if not partitions:
            return {}
        anyone = Consumer(uncommitted_ledger_settings(self._client, self._topic))
        try:
            places = [ClientPartition(self._topic, partition) for partition in partitions]
            bounds = anyone.log_bounds(places, ANSWER_TIMEOUT_S)
            return {partition: end for (_, partition), (_, end) in bounds.items()}
        except KafkaException as error:
            raise self._no_answer(error.args[0], f"the end of {self._topic}") from error
        finally:
            anyone.close()

    def _no_answer(self, error: KafkaError, about: str) -> LedgerError | LedgerUnavailable:
        """The error to raise: the topic is gone when brokers have said so for GONE_S. One that starts says so for a
        moment of a topic that it has; from silence nothing follows.
        """
        if error.code() in UNKNOWN_PLACE and self._is_absent():
            now_s = time.monotonic()
            self._absent_since_s = now_s if self._absent_since_s is None else self._absent_since_s
            if now_s - self._absent_since_s >= GONE_S:
                return LedgerError(f"the ledger topic {self._topic} is gone: it was deleted")
        else:
            self._absent_since_s = None
        self._consumer = None  # it may believe for minutes what a starting broker said: the next try is with another
        return LedgerUnavailable(f"no answer about {about}: {words_of(error)}")

    def _is_absent(self) -> bool:
        """True when the brokers say so now."""
        try:
            error = self._open().list_topics(self._topic, timeout=ANSWER_TIMEOUT_S).topics[self._topic].error
        except KafkaException:
            return False
        return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        """See `LedgerLog.read`.

        The end is asked for first: while others go on writing to a partition, no reader is ever told of an end.
        """
        consumer = self._open()
        ends = {partition: self.bounds(partition)[1] for partition in starts}
        ends |= self._written_ends(starts.keys() - at_least.keys())
        consumer.assign([ClientPartition(self._topic, partition, start) for partition, start in starts.items()])
        position = dict(starts)
        stalled = 0

        def unfinished() -> list[int]:
            return [p for p, place in position.items() if place < ends[p] or place <= at_least.get(p, -1)]

        try:
            while reading := unfinished():
                messages = batch(consumer, LEDGER_BATCH, READ_WAIT_S)
                stalled = stalled + 1 if not messages else 0
                if stalled > STALLED_READS_MAX:
                    last = {partition: self.bounds(partition)[1] for partition in reading}
                    written = self._written_ends(reading)
                    if all(written[partition] > at_least.get(partition, -1) for partition in reading):
                        raise LedgerUnavailable(
                            f"an open transaction holds back the readers of {self._topic} (by partition, since offset: "
                            f"{last}); when it stays, `tickover doctor` says how to end it"
                        )
                    raise LedgerError(
                        f"the ledger {self._topic} ends at {last} (by partition), but commits say that it was written "
                        f"up to {dict(at_least)}: it was truncated, created again, or has other partitions than before"
                    )
                for message in messages:
                    partition = message.partition() or 0
                    error = message.error()
                    if error is None:
                        position[partition] = (message.offset() or 0) + 1
                        yield LedgerRecord(
                            partition, message.offset() or 0, message.key() or b"", message.value() or b""
                        )
                    elif error.code() == KafkaError._PARTITION_EOF:  # past control records too, which nobody is given
                        position[partition] = max(position[partition], message.offset() or 0)
                    else:
                        log.warning("reading the ledger", extra={"error": str(error)})
        finally:
            consumer.unassign()
            self._consumer = None  # until the next assignment, which may be weeks away

    def close(self) -> None:
        """Twice is harmless."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(ledger_log_settings(self._client, self._topic))
        return self._consumer
