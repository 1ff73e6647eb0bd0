"""The receipts of changes: partition 1 of the topic of changes, a batch of them in each record.

They are written in the transaction that writes the progress, so a receipt stands there once. Those of different changes
lie between each other; keys are `<plan id>/<number of the first>`, values JSON lists.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import reader_settings
from sidecar.kafka.topic_follower import bounds, read
from sidecar.model.record import Headers

PARTITION: Final = 1
RECORDS_MAX: Final = 2_000  # looked at for one page

Receipts = list[dict[str, Any]]


class Place(NamedTuple):
    """Where reading goes on: in which record, at which of its rows."""

    offset: int
    row: int


class Batch(NamedTuple):
    """Receipts as they are sent (`transactional_sender.Sendable`)."""

    target: str
    key: bytes
    value: bytes
    headers: Headers
    partition: int = PARTITION


def batch(topic: str, plan_id: str, first: int, receipts: Sequence[Mapping[str, Any]]) -> Batch:
    """The record of these receipts, the first of which has this number."""
    # Ids as they are: escaped, they would have up to three times as many bytes.
    value = json.dumps(receipts, ensure_ascii=False).encode()
    return Batch(topic, f"{plan_id}/{first}".encode(), value, [])


class ReceiptLog:
    """Reads receipts; for any thread. Everything raises LogUnavailable."""

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self._client = client
        self.topic = topic

    def end(self) -> int:
        """Where the next receipt will be, or later."""
        consumer = self._consumer()
        try:
            return bounds(consumer, self.topic, PARTITION)[1]
        finally:
            consumer.close()

    def page(self, plan_id: str, start: Place, limit: int) -> tuple[Receipts, Place | None]:
        """The next receipts of a plan in the order in which they were written, and where to go on (None: there are no
        more yet). A page may have fewer than `limit`.
        """
        consumer = self._consumer()
        try:
            low, high = bounds(consumer, self.topic, PARTITION)
            return self._read(consumer, f"{plan_id}/".encode(), (max(start, Place(low, 0)), high), limit)
        finally:
            consumer.close()

    def _read(
        self, consumer: Consumer, prefix: bytes, span: tuple[Place, int], limit: int
    ) -> tuple[Receipts, Place | None]:
        (start, row), end = span
        found: Receipts = []
        looked_at = 0
        for messages in read(consumer, (self.topic, PARTITION), start, end):
            for message in messages:
                offset = message.offset() or 0
                if (message.key() or b"").startswith(prefix):
                    of_record = receipts_of(message.value())
                    rest = of_record[row if offset == start else 0 :]
                    taken = rest[: limit - len(found)]
                    found += taken
                    if len(found) == limit:
                        following = Place(offset, len(of_record) - len(rest) + len(taken))
                        return found, following
                looked_at += 1
                if looked_at == RECORDS_MAX:
                    return found, Place(offset + 1, 0)
        return found, None

    def _consumer(self) -> Consumer:
        return Consumer(reader_settings(self._client, f"{self.topic}.receipts"))


def receipts_of(value: bytes | None) -> Receipts:
    """The receipts of a record; garbage has none."""
    try:
        found = json.loads(value or b"[]")
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
