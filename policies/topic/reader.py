"""Reads the policy topic to its end, then follows it in a thread of its own.

Others, from any thread, get the current table as an immutable value, or wait until enough has been read.
What stops the reader leaves the last good table in place and shows in `reason`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from policies.errors import NewerSchema, PolicyStoreUnavailable, VersionUnknown
from policies.kafka_clients import ClientLost, Consumer
from policies.model import Removed, Versioned
from policies.table import EMPTY_TABLE, PolicyTable
from policies.topic.log import PolicyLog, Verdict

STOP_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.1
ASK_TIMEOUT_S: Final = 1.0
PARTITION: Final = 0

_SETTINGS: Final = {
    "allow.auto.create.topics": "false",
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "isolation.level": "read_uncommitted",  # somebody's open transaction must not hold all readers up
    "fetch.wait.max.ms": "100",
    "fetch.error.backoff.ms": "100",
}

_logger = logging.getLogger(__name__)

OnTable = Callable[[PolicyTable], None]
OnVerdict = Callable[[Verdict], None]


class PolicyReader:
    """One reader of the policy topic; `on_verdict` hears, in its thread, what became of each change."""

    def __init__(self, settings: Mapping[str, str], topic: str, on_verdict: OnVerdict) -> None:
        self.table: PolicyTable = EMPTY_TABLE
        self._topic = TopicPartition(topic, PARTITION)
        # The group is never joined; the client wants a name even to read without one.
        self._settings = {"group.id": "tickover-policies", **settings, **_SETTINGS}
        self._on_verdict = on_verdict
        self._callbacks: list[OnTable] = []
        self._log = PolicyLog()
        self._progress = threading.Condition()  # guards the log; told of every record read
        self._end = 0  # the end of the topic as last seen
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._trouble = "not started"  # passes
        self._failure = ""  # stays

    def start(self, timeout_s: float) -> None:
        """Return when the topic was read to its end. Raises PolicyStoreUnavailable. Twice is harmless."""
        if self._consumer is not None:
            return
        deadline_s = time.monotonic() + timeout_s
        consumer = Consumer({**self._settings, "error_cb": self._note_error})
        try:
            self._read_to_end(consumer, deadline_s)
        except BaseException:
            consumer.close()
            raise
        self._consumer = consumer
        self.table = self._log.table
        self._trouble = ""
        self._thread = threading.Thread(target=self._follow, args=(consumer,), name="policies", daemon=True)
        self._thread.start()

    def _read_to_end(self, consumer: Consumer, deadline_s: float) -> None:
        low, high = self._ask_bounds(consumer, deadline_s)
        if low > 0:
            raise PolicyStoreUnavailable(
                f"topic {self._topic.topic} lost its first {low} records, so the policies cannot be known: "
                "set retention.ms=-1 and cleanup.policy=delete, and use a new topic"
            )
        consumer.assign([TopicPartition(self._topic.topic, PARTITION, 0)])
        while max(self._log.position, self._end) < high and not self._failure:
            if time.monotonic() > deadline_s:
                raise PolicyStoreUnavailable(
                    f"topic {self._topic.topic} could not be read to its end in time: {self._trouble}"
                )
            self.step(consumer)

    def _ask_bounds(self, consumer: Consumer, deadline_s: float) -> tuple[int, int]:
        while True:
            try:
                return consumer.get_watermark_offsets(self._topic, timeout=ASK_TIMEOUT_S)
            except KafkaException as error:
                self._look_again(consumer)
                if self._stopping.wait(POLL_S) or time.monotonic() > deadline_s:
                    problem = f"topic {self._topic.topic} cannot be read: {error.args[0]}"
                    raise PolicyStoreUnavailable(problem) from error

    def _follow(self, consumer: Consumer) -> None:
        try:
            while not self._stopping.is_set() and not self._failure:
                try:
                    if (verdict := self.step(consumer)) is not None:
                        self._tell(verdict)
                    if self._trouble:
                        self._look_for_recovery(consumer)
                except ClientLost:
                    consumer = consumer.successor()
        except Exception as error:
            # The table stays as it is and grows stale: that must be seen.
            self._failure = f"the reader of topic {self._topic.topic} failed: {error!r}"
            _logger.exception("the reader of the policy topic failed")
        finally:
            consumer.close()

    def step(self, consumer: Consumer) -> Verdict | None:
        """Read at most one record; waits a tenth of a second at most."""
        message = consumer.poll(POLL_S)
        if message is None:
            return None
        error = message.error()
        if error is None:
            return self._apply(message)
        if error.code() == KafkaError._PARTITION_EOF:
            self._end = message.offset() or 0
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._failure = f"topic {self._topic.topic} has no offset {self._log.position} any more: was it made anew?"
        else:
            self._trouble = str(error)
        return None

    def _apply(self, message: Message) -> Verdict | None:
        offset, (_, time_ms) = message.offset() or 0, message.timestamp()
        with self._progress:
            try:
                verdict = self._log.apply(offset, message.value(), time_ms)
            except NewerSchema as error:
                self._failure = f"topic {self._topic.topic} is not read any further: {error}"
                _logger.error("the policy topic is not read any further: %s", error)
                return None
            self._progress.notify_all()
        if verdict is None:
            _logger.warning("the record at offset %d of topic %s is no policy", offset, self._topic.topic)
        return verdict

    def _tell(self, verdict: Verdict) -> None:
        if verdict.won is not None:
            with self._progress:
                self.table = self._log.table
            for callback in self._callbacks:
                callback(self.table)
        self._on_verdict(verdict)

    def _look_for_recovery(self, consumer: Consumer) -> None:
        """The client says when brokers go, not when they come back: ask."""
        try:
            consumer.get_watermark_offsets(self._topic, timeout=ASK_TIMEOUT_S)
            self._trouble = ""
        except KafkaException as error:
            self._trouble = str(error.args[0])
            self._look_again(consumer)

    def _look_again(self, consumer: Consumer) -> None:
        """The client may believe for minutes what a broker that had just started said of the topic."""
        with suppress(KafkaException):
            consumer.list_topics(self._topic.topic, timeout=ASK_TIMEOUT_S)

    def _note_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
            self._trouble = str(error)

    def stop(self) -> None:
        """Follow no longer; the last table stays. Twice is harmless."""
        self._stopping.set()
        self._trouble = self._trouble or "stopped"
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    # What others may ask, from any thread.

    @property
    def stopped(self) -> bool:
        """Whether nothing more will be read: stopped, or failed for good."""
        return self._stopping.is_set() or bool(self._failure)

    @property
    def reason(self) -> str:
        """Why the table may be stale; empty when it is current."""
        return self._failure or self._trouble

    def on_table(self, callback: OnTable) -> None:
        """Call back with every new table, in the reader's thread: be quick and do not raise."""
        self._callbacks.append(callback)

    def current_version(self, name: str) -> int:
        """The version of the policy now; 0: there is none."""
        with self._progress:
            return self._log.current_version(name)

    def versions(self, name: str) -> tuple[Versioned | Removed, ...]:
        """All versions the name ever had, oldest first; empty when it never existed."""
        with self._progress:
            return self._log.versions(name)

    def table_at(self, version: int, timeout_s: float) -> PolicyTable:
        """The policies as of a table version. Waits when another replica was ahead. Raises VersionUnknown."""
        with self._progress:
            if not self._progress.wait_for(lambda: self._log.position >= version, timeout_s):
                raise VersionUnknown(
                    f"policy table {version} is unknown: topic {self._topic.topic} was read up to {self._log.position}"
                )
            return self._log.table_at(version)
