"""Follows the ledger topic and gives its blocks to `Receipts`: a thread and a consumer of its own.

    no partitions known, or lost  -> ask for the ledger's partitions, begin where it was a while ago
    following                     -> a block at a time, the receipts free of trouble once the end as it was was reached;
                                     from then on in looks a while apart, while nobody waits

It joins no group and commits nothing. Brokers that go away come back by themselves: the client tries again, and until
then the receipts say what is wrong. What a process of a newer version writes can't be read by an older one: then the
receipts say so for good, and the engine goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_END, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, TopicPartition

from policies.kafka_clients import ClientLost, Consumer, batch
from sidecar.ledger.frame import LedgerFormatError, NewerLedgerFormatError
from sidecar.lookup.receipt import LedgerPlace
from sidecar.lookup.receipts import Receipts

POLL_S: Final = 0.1
REST_S: Final = 0.1  # between two looks while nobody waits for a receipt: each transaction has its blocks
BATCH: Final = 500
ASK_S: Final = 5.0
AGAIN_S: Final = 0.5
STOP_S: Final = 10.0

_SETTINGS: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",  # what was aborted did not happen
    "auto.offset.reset": "earliest",  # retention took what was next: go on with what is there
    "allow.auto.create.topics": "false",
    "queued.max.messages.kbytes": "8192",
    "queued.min.messages": "1",  # nothing is fetched while what came isn't taken
    "fetch.queue.backoff.ms": "50",
    "fetch.wait.max.ms": "100",
    "fetch.error.backoff.ms": "100",
    "reconnect.backoff.max.ms": "1000",
}

log = logging.getLogger("tickover.api")


class LedgerReader:
    """`start` returns at once; `stop` when the thread has ended. Twice is harmless for both."""

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        receipts: Receipts,
        look_back_ms: int,
        consumer: Callable[[Any], Consumer] = Consumer,
    ) -> None:
        self._settings = {**client, **_SETTINGS, "group.id": f"{topic}.receipts", "error_cb": self._note_error}
        self._topic = topic
        self._receipts = receipts
        self._look_back_ms = look_back_ms
        self._make = consumer
        self._ends: dict[int, int] = {}  # partitions not yet read to their end as it was at the start
        self._has_begun = False
        self._down = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="api-ledger", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Follow no longer; whoever waits for a receipt hears of it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
        self._receipts.end()

    def _run(self) -> None:
        consumer: Consumer | None = None
        try:
            consumer = self._make(self._settings)
            while not self._stopping.is_set():
                try:
                    if not self._has_begun:
                        self._begin(consumer)
                    if self.step(consumer) and not self._ends:
                        self._receipts.rest(REST_S)
                except ClientLost:
                    consumer = consumer.successor()
        except NewerLedgerFormatError as error:
            self._receipts.note_trouble(f"{error}: upgrade this process")
            log.error("receipts end here", extra={"error": str(error)})
        except Exception as error:
            self._receipts.note_trouble(f"the reader of the ledger failed: {type(error).__name__}")
            log.exception("the reader of the ledger failed")
        finally:
            self._receipts.end()
            if consumer is not None:
                consumer.close()

    # --- where to begin -------------------------------------------------------------------------------------------

    def _begin(self, consumer: Consumer) -> None:
        """Find the ledger, and where it was `look_back_ms` ago; ask again until somebody answers."""
        while not self._stopping.is_set():
            try:
                starts = self._starts(consumer)
                if starts:
                    consumer.assign(starts)
                    self._has_begun = True
                    return
                problem = f"there is no topic {self._topic}"
            except ClientLost:
                raise
            except KafkaException as error:
                problem = f"no answer about {self._topic}: {error.args[0].str()}"
            self._receipts.note_trouble(problem)
            self._stopping.wait(AGAIN_S)

    def _starts(self, consumer: Consumer) -> list[TopicPartition]:
        metadata = consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic]
        if metadata.error is not None or not metadata.partitions:
            return []
        since_ms = time.time_ns() // 1_000_000 - self._look_back_ms
        places = [TopicPartition(self._topic, partition, since_ms) for partition in sorted(metadata.partitions)]
        starts = consumer.offsets_for_times(places, timeout=ASK_S)
        bounds = consumer.log_bounds(places, ASK_S)
        ends: dict[int, int] = {}
        for place in starts:
            if place.error is not None:
                raise KafkaException(place.error)
            low, high = bounds[place.topic, place.partition]
            if place.offset == OFFSET_END:  # nothing was written since
                place.offset = high
            if max(place.offset, low) < high:
                ends[place.partition] = high
        self._ends = ends
        self._note_progress()
        return starts

    # --- following ------------------------------------------------------------------------------------------------

    def step(self, consumer: Consumer) -> int:
        """Take in what is there, waiting a tenth of a second at most; returns how many blocks."""
        messages = batch(consumer, BATCH, POLL_S)
        if not messages:
            if self._down:
                self._look_for_brokers(consumer)
            return 0
        blocks = 0
        for message in messages:
            blocks += self._take(message)
        self._note_progress()
        return blocks

    def _take(self, message: Message) -> int:
        partition, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is None:
            self._down = ""
            self._reached(partition, offset + 1)
            stamped_by, time_ms = message.timestamp()
            appended_ms = time_ms if stamped_by == TIMESTAMP_LOG_APPEND_TIME else -1
            try:
                self._receipts.add(LedgerPlace(partition, offset, appended_ms), message.value() or b"")
            except NewerLedgerFormatError:
                raise
            except LedgerFormatError as damaged:
                extra = {"partition": partition, "offset": offset, "error": str(damaged)}
                log.warning("a record of the ledger is no block", extra=extra)
                return 0
            return 1
        if error.code() == KafkaError._PARTITION_EOF:  # open transactions may hold back what lies behind
            self._down = ""
            self._ends.pop(partition, None)
        else:
            log.warning("reading the ledger for receipts", extra={"error": str(error)})
        return 0

    def _reached(self, partition: int, next_offset: int) -> None:
        if self._ends and next_offset >= self._ends.get(partition, next_offset + 1):
            del self._ends[partition]

    def _note_progress(self) -> None:
        behind = f"the ledger is being read, {len(self._ends)} partitions are not at their end" if self._ends else ""
        trouble = self._down or behind
        if trouble != self._receipts.trouble:
            self._receipts.note_trouble(trouble)

    def _look_for_brokers(self, consumer: Consumer) -> None:
        """The client says when brokers go, not when they come back: ask."""
        try:
            consumer.list_topics(self._topic, timeout=AGAIN_S)
        except KafkaException:
            return
        self._down = ""
        self._note_progress()

    def _note_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self._down = f"no broker answers: {error.str()}"
            self._note_progress()
