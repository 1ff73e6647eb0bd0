"""Settlement: how what was emitted becomes a fact in the ledger; only then come a done mark and a commit."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from sidecar.engine.commit.interval import CommitInterval, EmissionApart
from sidecar.engine.commit.trace_queue import Traces
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.topic import LedgerTopic
from sidecar.model.ports import Time


class Settlement(Protocol):
    """The strategy that makes emissions facts. The engine emits into `open` and calls `step` once a settle interval."""

    ready: bool  # lanes may be taken on
    broken: bool  # nobody knows what became of the last interval: let go of the lanes, `prepare`, recover them
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

    def hasten(self, quiet: bool) -> bool:
        """Bring on what the next facts wait for, which may take a millisecond: a `quiet` engine has that to spare.
        False: nothing to do.
        """

    def unfinished(self, lanes: Iterable[SourcePartition]) -> bool: ...

    def commit(self, lanes: Iterable[SourcePartition], wait: bool) -> None: ...

    def stop(self) -> None:
        """Let go of threads. Twice is harmless."""


def silence_of(ledger: LedgerTopic) -> str:
    """The problem of a ledger that doesn't acknowledge."""
    return f"the ledger topic {ledger.name} does not acknowledge: nothing is settled until it does"


RECORDS_MAX: Final = 1_000_000  # what the client's queue takes
