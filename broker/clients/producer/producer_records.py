"""Types that a producer's user meets: records, where they are, interceptors, serializers, settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from broker.records.compression import CompressionType
from broker.records.records import Headers

RECORD_OVERHEAD_BYTES: Final = 21  # at most, for lengths and deltas; as Java reckons


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record to send; without timestamp (ms) it is now, without partition the partitioner decides."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class RecordMetadata(NamedTuple):
    """Where a record is; offset -1: nobody said, as with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ProducerInterceptor(Protocol):
    """Sees every record on its way, and its end."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead, or the same."""

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """Hear that a record is there, or that it failed."""


Serializer = Callable[[str, Any], bytes | None]
"""(topic, key or value) -> bytes; None stays None: a tombstone."""


def serialize_bytes(_topic: str, data: bytes | None) -> bytes | None:
    """Bytes as they are."""
    return data


def serialize_string(_topic: str, text: str | None) -> bytes | None:
    """UTF-8."""
    return None if text is None else text.encode()


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """As in Java's ProducerConfig, with its defaults."""

    acks: int = -1
    linger_ms: int = 5
    batch_size: int = 16_384
    buffer_memory: int = 32 << 20
    max_block_ms: int = 60_000
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    max_in_flight_requests_per_connection: int = 5
    enable_idempotence: bool = True
    compression_type: CompressionType = CompressionType.NONE

    def __post_init__(self) -> None:
        if self.enable_idempotence and (self.acks != -1 or self.max_in_flight_requests_per_connection > 5):
            raise ValueError("idempotence takes acks=-1 and at most 5 requests in flight: brokers remember 5 batches")
        if self.acks not in (-1, 0, 1):
            raise ValueError(f"acks is -1, 0 or 1, not {self.acks}")


def record_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[bytes, bytes | None]]) -> int:
    """Bytes that a record takes in a batch, at most."""
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(10 + len(name) + len(content or b"") for name, content in headers)
