"""Settlement: how what was emitted becomes a fact in the ledger; only then come a done mark and a commit.

`Traces` are emissions that are facts, on their way to the thread that makes spans of them (`service/tracing.py`). The
engine only looks for the producer's trace context and its sampled flag. What is not sampled costs one look at the
headers; what is goes into a bounded queue without its payload, and is dropped and counted when that is full.
"""

from collections.abc import Iterable, Sequence
from queue import Full, Queue
from typing import ClassVar, Final, NamedTuple, Protocol

from sidecar.engine.commit.interval import CommitInterval, EmissionApart
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.topic import LedgerTopic
from sidecar.model.ports import Time
from sidecar.model.record import Headers, Held

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_FLAGS_AT: Final = 54  # the last digit of the flags in 00-<32 digits>-<16 digits>-<2 digits>: W3C Trace Context, 3.2
_SAMPLED: Final = frozenset(b"13579bdf")
RECORDS_MAX: Final = 1_000_000  # what the client's queue takes


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


class Settlement(Protocol):
    """The strategy that makes emissions facts. The engine emits into `open` and calls `step` once a settle interval."""

    shows_at_step: ClassVar[bool]  # nobody sees what was emitted before a step has made it a fact
    ready: bool  # lanes may be taken on
    must_start_over: bool  # nobody knows what became of the last interval: let go of the lanes, `prepare`, recover them
    problem: str
    time: Time  # as its blocks have shown the broker's clock
    traces: Traces | None  # where emissions that are facts are told of, if anybody asks

    @property
    def open(self) -> CommitInterval:
        """Where records are emitted to."""

    @property
    def room(self) -> int:
        """How many more records `open` should get."""

    @property
    def in_flight(self) -> Sequence[CommitInterval]:
        """Intervals whose records were handed over and aren't facts yet."""

    @property
    def unwritten(self) -> tuple[int, int]:
        """Records that only blocks on their way to the ledger know of, and the bytes of these blocks."""

    @property
    def is_pressing(self) -> bool:
        """Something is to be taken on as soon as an answer is there, without waiting for the next step."""

    @property
    def is_under_way(self) -> bool:
        """Something was handed over or sealed and isn't a fact yet: the next steps take it on."""

    def prepare(self) -> None:
        """Get ready, or ready again; `ready` says when."""

    def sweep(self, lanes: Iterable[SourcePartition]) -> None:
        """Commits of the group stay hidden: end what may hide them there. `lanes`: all there are."""

    def step(self, lanes: Iterable[SourcePartition], now_ms: int, apart: EmissionApart) -> bool:
        """One settle interval; False when it can't be now: ask again soon. Records that need a transaction of their own
        are emitted into it from `apart`.
        """

    def write_ahead(self, lanes: Iterable[SourcePartition], now_ms: int) -> bool:
        """Half an interval before a step: what will make it end sooner. False: not now, ask again soon."""

    def poll(self, seconds: float) -> None:
        """Serve delivery reports, for at most so long when there are none yet."""

    def hasten(self, quiet: bool, most_s: float = ...) -> bool:
        """Bring on what the next facts wait for, which may take a millisecond: a `quiet` engine has that to spare.
        Reports are waited for `most_s` at most, a millisecond if nothing is said. False: nothing to do.
        """

    def unfinished(self, lanes: Iterable[SourcePartition]) -> bool: ...

    def commit(self, lanes: Iterable[SourcePartition], wait: bool) -> None: ...

    def stop(self) -> None:
        """Let go of threads. Twice is harmless."""


def silence_of(ledger: LedgerTopic) -> str:
    """The problem of a ledger that doesn't acknowledge."""
    return f"the ledger topic {ledger.name} does not acknowledge: nothing is settled until it does"
