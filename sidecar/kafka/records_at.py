"""First records at or behind given offsets of source partitions, read by a consumer that never joins a group."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import first_records_settings
from sidecar.kafka.producers import ANSWER_TIMEOUT_S, client_log
from sidecar.model.log_cuts import ReadMark
from sidecar.model.ports import mark_of
from sidecar.model.record import TopicPartition

log = logging.getLogger(__name__)

FOUND_TIMEOUT_S: Final = 3.0
VAIN_MAX: Final = 3  # first connections may take longer than one round
READ_BATCH: Final = 1_000
READ_WAIT_S: Final = 0.05


class KafkaRecords:
    """Blocking; for one thread."""

    def __init__(self, client: Mapping[str, str], group: str) -> None:
        self._settings = {**first_records_settings(client, group), "logger": client_log}
        self._consumer: Any = None
        self._vain = 0  # rounds in a row in which nobody answered

    def at(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
        """The first record of each at or behind an offset, None where there is none. Who doesn't answer in time is left
        out. Raises KafkaException.
        """
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        found: dict[TopicPartition, ReadMark | None] = {}
        deadline_s = time.monotonic() + FOUND_TIMEOUT_S
        self._consumer.assign([ClientPartition(*lane, offset) for lane, offset in places.items()])
        try:
            while len(found) < len(places) and time.monotonic() < deadline_s:
                self._take(self._consumer.consume(READ_BATCH, READ_WAIT_S), places, found)
        finally:
            self._consumer.unassign()
        self._vain = 0 if found or not places else self._vain + 1
        if self._vain >= VAIN_MAX:  # it may wait for nothing
            self.close()
        return found

    def close(self) -> None:
        """Let go of the client, without waiting for brokers."""
        self._consumer, self._vain = None, 0

    def _take(
        self,
        messages: Sequence[Message],
        places: Mapping[TopicPartition, int],
        found: dict[TopicPartition, ReadMark | None],
    ) -> None:
        for message in messages:
            lane, error = TopicPartition(message.topic() or "", message.partition() or 0), message.error()
            if lane not in places or lane in found:
                continue
            if error is None:
                found[lane] = mark_of(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET and message.offset() not in (None, places[lane]):
                pass  # of an earlier question
            elif error.code() == KafkaError._PARTITION_EOF or self._is_behind_end(lane, places[lane], error):
                found[lane] = None
            else:
                log.warning("looking at a source's log", extra={"lane": str(lane), "error": str(error)})

    def _is_behind_end(self, lane: TopicPartition, offset: int, error: KafkaError) -> bool:
        """Out of range, and not since retention took what was there."""
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return False
        first, _ = self._consumer.get_watermark_offsets(ClientPartition(*lane), timeout=ANSWER_TIMEOUT_S, cached=False)
        return bool(first <= offset)
