"""How topics are read beside the engine, by a consumer that joins no group and commits nothing: once, or followed.

Followed are topics of one partition that are the memory of all replicas (jobs, redriven letters, schedules): small,
compacted, read from their beginning for as long as the process lives. Two more are followed elsewhere, for a reason:

* the policies' (`policies/topic/reader.py`): it sees what open transactions have written, since the order alone says
  whose change won. It stops for good at a record of a newer version, and says all the time whether the table is
  current.
* the ledger (`sidecar/lookup/ledger_reader.py`): it has many partitions, is read from a time on, and what it says of
  messages is let go of again.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import confluent_kafka
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, TopicPartition

from policies.kafka_clients import Consumer, batch
from sidecar.kafka.client_settings import follower_settings, uncommitted_reader_settings
from sidecar.kafka.errors import READING_PASSES

PARTITION: Final = 0
ANSWER_S: Final = 10.0
READ_BATCH: Final = 500
READ_WAIT_S: Final = 0.2
SILENCE_READS_MAX: Final = 50  # reads in a row without anything: ten seconds
STOP_S: Final = 15.0
REPLACED_S: Final = 1.0  # after an error of one topic, the consumer of all is replaced ...
REPLACED_MAX_S: Final = 30.0  # ... and while that comes again, later each time
CATCH_UP_S: Final = 30.0  # longer than a transaction that somebody left open can hold up readers

log = logging.getLogger("tickover.follower")

Apply = Callable[[bytes, bytes, int], None]  # key, value, and the broker's time of it in ms (0: not known)


class LogUnavailable(Exception):
    """Kafka doesn't answer."""


def read(consumer: confluent_kafka.Consumer, lane: tuple[str, int], start: int, end: int) -> Iterator[list[Message]]:
    """Batches of one partition from `start` to before `end`; empty batches are signs of life. Raises LogUnavailable."""
    consumer.assign([TopicPartition(*lane, start)])
    position, silent = start, 0
    try:
        while position < end:
            found = []
            messages = batch(consumer, READ_BATCH, READ_WAIT_S)
            silent = 0 if messages else silent + 1
            if silent > SILENCE_READS_MAX:
                raise LogUnavailable(f"no answer about {lane[0]}/{lane[1]}")
            for message in messages:
                position = max(position, position_after(message) or 0)
                if message.error() is None and (message.offset() or 0) < end:
                    found.append(message)
            yield found
    except KafkaException as error:
        raise LogUnavailable(error.args[0].str()) from None
    finally:
        consumer.unassign()


def bounds(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """First offset of a partition, and where it ends for this reader. Raises LogUnavailable."""
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
    except KafkaException as error:
        raise LogUnavailable(error.args[0].str()) from None


def position_after(message: Any) -> int | None:
    """Offset to be read next, when a consumer has given this: behind a record, or the end that it has come to, past
    what was aborted, too. None: an error that its client mends.

    Raises KafkaException for any other.
    """
    error, offset = message.error(), message.offset()
    if error is None:
        return int(offset) + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return int(offset)
    if error.code() in READING_PASSES:
        return None
    raise KafkaException(error)


class TopicReader:
    """Reads what is followed by one consumer in one thread, however many topics: each client has threads of its own.

    The thread lives as long as something is followed. For any thread.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self.client = client
        self._followers: Mapping[str, TopicFollower] = {}  # by topic; replaced, never changed
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()

    def follow(self, follower: "TopicFollower") -> None:
        """Have it read from now on. Twice is harmless."""
        with self._changing:
            self._followers = {**self._followers, follower.topic: follower}
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, args=(follower.topic,), name="topics", daemon=True)
                self._thread.start()

    def leave(self, follower: "TopicFollower") -> None:
        """Read it no more; with the last one the thread ends. Twice is harmless."""
        with self._changing:
            self._followers = {topic: one for topic, one in self._followers.items() if one is not follower}
            if self._followers or self._thread is None:
                return
            thread, self._thread = self._thread, None
        thread.join(STOP_S)

    def _read(self, group_id: str) -> None:
        """Until nothing is followed. A consumer that fails is made anew; what was read stays.

        The client asks for the coordinator of `group_id`, which is never joined: one that its rights are for.
        """
        replaced_s = REPLACED_S
        while self._thread is threading.current_thread():
            began_s = time.monotonic()
            try:
                with closing(Consumer(follower_settings(self.client, group_id))) as consumer:
                    self._read_by(consumer, replaced_s)
            except KafkaException as error:
                log.warning("reading again", extra={"error": error.args[0].str()})
                time.sleep(READ_WAIT_S)
            # One topic that stays refused must not cost the others a new consumer each second.
            was_well = time.monotonic() - began_s > 2 * replaced_s
            replaced_s = REPLACED_S if was_well else min(2 * replaced_s, REPLACED_MAX_S)

    def _read_by(self, consumer: confluent_kafka.Consumer, replaced_s: float) -> None:
        """Until this consumer is to be replaced: so long after an error of one topic, in which others are read.

        Raises KafkaException for what isn't of one topic.
        """
        assigned: Mapping[str, TopicFollower] = {}
        replaced_at_s = math.inf
        while self._thread is threading.current_thread() and time.monotonic() < replaced_at_s:
            if self._followers is not assigned:
                assigned = self._followers
                consumer.assign([TopicPartition(topic, PARTITION, one.read_up_to) for topic, one in assigned.items()])
            for message in batch(consumer, READ_BATCH, READ_WAIT_S):
                follower = assigned.get(message.topic() or "")
                try:
                    if follower is not None:
                        follower.take(message)
                    elif message.error() is not None:
                        position_after(message)
                except KafkaException as error:
                    if follower is None:
                        raise
                    log.warning("reading again", extra={"topic": follower.topic, "error": error.args[0].str()})
                    replaced_at_s = min(replaced_at_s, time.monotonic() + replaced_s)


class TopicFollower:
    """One topic that is followed. `apply` is called in the reader's thread, with `changed` held. A null key or value is
    empty.

    A record that `apply` fails of is passed over: whatever bytes somebody writes to the topic, the thread goes on.
    """

    def __init__(self, reader: TopicReader, topic: str, apply: Apply) -> None:
        self.changed = threading.Condition()
        self.topic = topic
        self.read_up_to = 0
        self._reader = reader
        self._apply = apply
        self._is_stopped = False

    def start(self) -> None:
        """Twice is harmless."""
        self._reader.follow(self)

    def stop(self) -> None:
        """Twice is harmless."""
        with self.changed:
            self._is_stopped = True
            self.changed.notify_all()
        self._reader.leave(self)

    def catch_up(self, seconds: float = CATCH_UP_S) -> None:
        """Wait until everything that is in the topic now has been read; what is in open transactions, too.

        Raises LogUnavailable.
        """
        anyone = Consumer(uncommitted_reader_settings(self._reader.client, self.topic))
        try:
            _, end = bounds(anyone, self.topic, PARTITION)
        finally:
            anyone.close()
        self.wait_for(end - 1, seconds)

    def wait_for(self, offset: int, seconds: float = CATCH_UP_S) -> None:
        """Until what is at this offset has been read. Raises LogUnavailable."""
        with self.changed:
            self.changed.wait_for(lambda: self.read_up_to > offset or self._is_stopped, seconds)
            if self.read_up_to <= offset:
                raise LogUnavailable(f"{self.topic} can't be read to its end")

    def take(self, message: Any) -> None:
        """One record, or the news that there are no more. Raises KafkaException for what the client can't mend."""
        position = position_after(message)
        if position is None:
            return
        with self.changed:
            if message.error() is None:
                self._take_in(message)
            self.read_up_to = max(self.read_up_to, position)
            self.changed.notify_all()

    def _take_in(self, message: Any) -> None:
        try:
            self._apply(message.key() or b"", message.value() or b"", _appended_ms(message))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next record must be read
            about = {"topic": self.topic, "offset": message.offset(), "error": type(error).__name__}
            log.warning("a record can't be read, and is passed over", extra=about)


def _appended_ms(message: Any) -> int:
    kind, stamp_ms = message.timestamp()
    return stamp_ms if kind == TIMESTAMP_LOG_APPEND_TIME else 0
