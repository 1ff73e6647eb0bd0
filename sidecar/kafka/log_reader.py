"""Reading a source again by offset, beside the group: a consumer of its own, for the rebuild's thread.

Wanted offsets come in ascending bunches. The log is read straight on, and only a gap that would take longer to read
than to jump over is jumped over.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from policies.kafka_clients import Consumer, is_fatal
from sidecar.kafka.client_settings import source_log_settings
from sidecar.kafka.producers import ANSWER_TIMEOUT_S, client_log
from sidecar.model.ports import SourceRecord, SourceUnavailable
from sidecar.model.record import LaneId

log = logging.getLogger(__name__)

READ_BATCH: Final = 1_000
READ_WAIT_S: Final = 0.05
GAP_MAX: Final = 10_000  # offsets: a jump costs as much as reading so many


class KafkaSourceLog:
    """`SourceLog` over a consumer that never joins a group. Blocking; for one thread."""

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        self._settings = {**source_log_settings(client, group), "logger": client_log}
        self._consumer: Consumer | None = None
        self._lane: LaneId | None = None
        self._position = 0  # every record below was read
        self._end = -1  # of the log, when it was reached
        self._ahead: deque[Message] = deque()  # read, and beyond what was wanted

    def fetch(self, lane: LaneId, offsets: Sequence[int]) -> dict[int, SourceRecord]:
        """See `SourceLog.fetch`."""
        found: dict[int, SourceRecord] = {}
        try:
            for first, last in _runs(offsets):
                self._go_to(lane, first)
                self._read(frozenset(offsets), last, found)
        except KafkaException as error:
            self._lane = self._consumer = None  # it may believe for minutes what a starting broker said of a topic
            raise SourceUnavailable(f"no answer about {lane}: {error.args[0].str()}") from error
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

    def _go_to(self, lane: LaneId, offset: int) -> None:
        """Be ready to read at `offset`, or at the log's start where that is later."""
        next_read = (self._ahead[0].offset() or 0) if self._ahead else self._position
        if self._lane == lane and next_read <= offset <= next_read + GAP_MAX:
            return
        consumer = self._open()
        place = TopicPartition(*lane)
        first, end = consumer.get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
        self._position, self._end = min(max(offset, first), end), -1
        self._ahead.clear()
        consumer.assign([TopicPartition(*lane, self._position)])
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
            messages = self._open().consume(READ_BATCH, READ_WAIT_S)
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
