"""Emissions that are facts, on their way from the engine's thread to the one that makes spans of them (`tracing.py`).

The engine only looks for the producer's trace context and its sampled flag. What is not sampled costs one look at the
headers; what is goes into a bounded queue without its payload, and is dropped and counted when that is full.
"""

from queue import Full, Queue
from typing import Final, NamedTuple

from sidecar.engine.commit.interval import CommitInterval
from sidecar.model.record import Headers, Held

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_FLAGS_AT: Final = 54  # the last digit of the flags in 00-<32 digits>-<16 digits>-<2 digits>: W3C Trace Context, 3.2
_SAMPLED: Final = frozenset(b"13579bdf")


class Emission(NamedTuple):
    """One emission that is a fact: the record without key and value, and when it was handed over and settled."""

    held: Held
    origin: bytes
    tombstone: bool
    handed_over_ms: int
    settled_ms: int


class Traces:
    """Owned by the engine's thread, but for `queue`, which another one empties."""

    def __init__(self, spans_max: int) -> None:
        self.queue: Queue[Emission] = Queue(spans_max)
        self.dropped = 0  # since the start

    def put(self, interval: CommitInterval, now_ms: int) -> None:
        """Everything that this interval emitted is a fact as of now. Never waits."""
        for lane, records, handed_over_ms in interval.batches:
            for held in records:
                if held.headers and is_sampled(held.headers):
                    origin = held.origin or lane.here + b"%d" % held.came_at
                    bare = held._replace(key=None, value=None)
                    self._put(Emission(bare, origin, held.value is None, handed_over_ms, now_ms))

    def _put(self, emission: Emission) -> None:
        try:
            self.queue.put_nowait(emission)
        except Full:
            self.dropped += 1


def is_sampled(headers: Headers) -> bool:
    """The producer's trace is recorded. Of several contexts the last counts, as for consumers."""
    for name, value in reversed(headers):
        if name == TRACEPARENT:
            return value is not None and len(value) > _FLAGS_AT and value[_FLAGS_AT] in _SAMPLED
    return False
