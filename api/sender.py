"""Sends single records to source topics and answers each when Kafka has acknowledged it.

One producer, one thread that serves its delivery reports, and one future per record in between. A caller may
give up waiting at any time (its HTTP client went away): then its future is cancelled, and setting a result on
a cancelled future raises in whoever does it, which would be the thread that serves everybody.
`set_running_or_notify_cancel` is what stands between.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from api.ports import Acknowledged, Outgoing, SenderError, SenderRefused, SenderUnavailable
from policies.kafka_clients import LastingProducer, Producer
from sidecar.kafka.background import in_background
from sidecar.kafka.client_settings import rest_sender_settings

POLL_S: Final = 0.1
STOP_S: Final = 10.0
IDLE_S: Final = 60.0  # without a record, after which the client is let go
METADATA_TIMEOUT_S: Final = 5.0
PARTITIONS_FRESH_S: Final = 10.0
ABSENCE_FRESH_S: Final = 1.0
_REFUSED: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "too_large",
    KafkaError.INVALID_RECORD: "invalid_record",
    KafkaError._INVALID_ARG: "invalid_record",
}

log = logging.getLogger("tickover.api")


class Partitions(NamedTuple):
    """Partition counts of all topics, as of one moment."""

    counts: Mapping[str, int]
    read_monotonic_s: float


@dataclass(slots=True)
class _Waiting:
    """The future of one record; its bound method is the delivery callback."""

    future: "Future[Acknowledged]" = field(default_factory=Future)

    def report(self, error: KafkaError | None, message: Message) -> None:
        if not self.future.set_running_or_notify_cancel():
            return  # nobody waits any more; the record is in Kafka or it isn't, as with any lost connection
        if error is not None:
            self.future.set_exception(_refusal(error))
            return
        offset = message.offset()
        if offset is None:  # the client infers it from a later record: sidecar/engine/commit/interval.py, `Unproven`
            self.future.set_exception(SenderUnavailable("the broker has not said that it has the record"))
            return
        self.future.set_result(
            Acknowledged(message.topic() or "", message.partition() or 0, offset, message.timestamp()[1])
        )


class KafkaSender:
    """`start`, any number of `send`s on any event loop, `stop`. It has a client of Kafka while it is used."""

    def __init__(self, client_settings: Mapping[str, str], producer: Callable[[Any], Producer] = Producer):
        self._producer = LastingProducer(partial(producer, rest_sender_settings(client_settings)), _let_go)
        self._thread = threading.Thread(target=self._serve_reports, name="api-sender", daemon=True)
        self._stopping = threading.Event()
        self._sending = threading.Event()  # there is a client, of which reports may come; also set to end the thread
        self._partitions = Partitions({}, float("-inf"))
        self._asking = threading.Lock()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits a while for what is under way. Twice is harmless."""
        if self._stopping.is_set():
            return
        if self._thread.is_alive():
            self._producer.flush(STOP_S)
        self._stopping.set()
        self._sending.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._producer.close()

    async def send(self, record: Outgoing) -> Acknowledged:
        """Hand over one record and wait for the acknowledgement. Raises `SenderError`."""
        waiting = _Waiting()
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=waiting.report,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        except BufferError:
            raise SenderUnavailable("the producer's queue is full") from None
        except KafkaException as error:
            raise _refusal(error.args[0]) from None
        self._sending.set()
        return await asyncio.wrap_future(waiting.future)

    async def partition_count(self, topic: str) -> int | None:
        """How many partitions `topic` has, None when there is no such topic. Raises `SenderUnavailable`.

        Asks for all topics: asking a broker for one that isn't there may create it.
        """
        known = self._partitions
        limit_s = PARTITIONS_FRESH_S if topic in known.counts else ABSENCE_FRESH_S
        if time.monotonic() - known.read_monotonic_s > limit_s:
            known = await asyncio.to_thread(self._read_partitions, known)
        return known.counts.get(topic)

    def _read_partitions(self, known: Partitions) -> Partitions:
        with self._asking:
            if self._partitions is not known:
                return self._partitions  # somebody else asked while we waited for the lock
            try:
                metadata = self._producer.current.list_topics(timeout=METADATA_TIMEOUT_S)
                self._sending.set()
            except KafkaException as error:
                raise SenderUnavailable(error.args[0].str()) from None
            counts = {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.partitions}
            self._partitions = Partitions(counts, time.monotonic())
            return self._partitions

    def _serve_reports(self) -> None:
        while not self._stopping.is_set():
            self._sending.wait()
            try:
                self._producer.poll(POLL_S)
                self._sending.clear()  # before it is asked: whoever sends meanwhile sets it behind that
                if self._producer.rest(IDLE_S):
                    continue
            except Exception as error:  # noqa: BLE001 - of a callback; this thread serves all requests
                log.error("delivery report failed: %s", type(error).__name__)
            self._sending.set()


def _let_go(worn: Producer, _: KafkaException) -> None:
    """Purge it: whoever waits for it is told that it failed."""
    log.warning("another producer is made for REST, as the last one had a fatal error")

    def end_worn() -> None:
        worn.purge(in_queue=True, in_flight=True, blocking=False)
        worn.flush(STOP_S)

    in_background(end_worn)


def _refusal(error: KafkaError) -> SenderError:
    reason = _REFUSED.get(error.code())
    return SenderUnavailable(error.str()) if reason is None else SenderRefused(reason, error.str())
