"""One Kafka transaction of exactly-once settlement: its content. `transaction_end.py` commits it, or ends it otherwise.

Committed    everything in it is a fact
Aborted      nothing in it has happened: all of it is emitted again, but for what the brokers refused
Broken       nobody knows: the producers are made anew, which settles the matter, and the lanes are recovered
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sidecar.engine.commit.block_builder import PendingBlock
from sidecar.engine.commit.interval import CommitInterval
from sidecar.engine.partition.exits import REFUSED_TOPIC
from sidecar.engine.partition.partition import SourcePartition
from sidecar.ledger.commit_metadata import CommitState
from sidecar.model.ports import NO_MEMBER, Member, TransactionalOutput, refusal

LINGER_S: Final = 0.01  # how long records wait for others before they are sent
PUSH_S: Final = 0.001  # the least that the client can wait
PUSH_AGAIN_S: Final = 0.01  # where nothing came of the last


@dataclass(frozen=True, slots=True)
class Written:
    """A block's place in the ledger, and the broker's clock as its acknowledgement showed it."""

    offset: int
    broker_ms: int
    acknowledged_boot_ms: float


class SealedBlock:
    """One block on its way to the ledger within a transaction."""

    __slots__ = ("_boot_ms", "error", "lane", "seal", "seen", "send", "sent", "sent_boot_ms", "written")

    send: Callable[[TransactionalOutput], None]

    def __init__(self, lane: SourcePartition, seal: PendingBlock, boot_ms: Callable[[], float]) -> None:
        self.lane = lane
        self.seal = seal
        self.sent_boot_ms = boot_ms()
        self.written: Written | None = None
        self.error: Any = None
        self.sent = False
        self.seen = False  # the broker's clock, by its acknowledgement
        self._boot_ms = boot_ms

    def report(self, error: Any, message: Any) -> None:
        """Delivery report, on the engine's thread or the committer's: only notes what it says."""
        self.error = refusal(error, message)
        if self.error is None:
            self.written = Written(message.offset(), message.timestamp()[1], self._boot_ms())


class Push(NamedTuple):
    """When the client was last asked to send what lingers, and how much was handed over and acknowledged by then."""

    at_s: float
    sent: int = 0
    acknowledged: int = 0


NEVER: Final = Push(0.0)


@dataclass(slots=True)
class Transaction:
    """A producer's transaction, and what is in it.

    `doomed`: it must not be committed, because a lane in it isn't ours any more, or may not be. `early`: because
    something in it isn't due by the broker's clock as it is known now. `failed`: the client takes nothing more into it.
    `stuck`: something in it was not acknowledged in time. A partition with too few replicas in sync takes no record of
    a transaction, and neither the mark of its end: until it does, the transactional id is of no use.
    """

    interval: CommitInterval
    member: Member = NO_MEMBER  # as of its end: a commit of a former generation is refused
    blocks: list[SealedBlock] = field(default_factory=list)
    states: list[tuple[SourcePartition, CommitState]] = field(default_factory=list)
    doomed: bool = False
    early: bool = False
    failed: bool = False
    stuck: bool = False
    careful: bool = False  # every record in a batch of its own
    paced: bool = False  # its client sends by itself: many batches, and a flush with each answer would be a busy loop
    taken: int = 0  # of its records when the others were given up; 0 where none were
    pushed: Push = NEVER
    begun_s: float = 0.0

    @property
    def output(self) -> TransactionalOutput:
        """The producer whose transaction it is."""
        output: TransactionalOutput = self.interval.output
        return output

    @property
    def waits_for_reports(self) -> bool:
        """All is sent, nothing is refused so far, and something is not acknowledged: more reports may come."""
        if self.doomed or self.failed or self.careful or self.interval.failures:
            return False
        blocks = self.blocks
        if any(block.error is not None or not block.sent for block in blocks):
            return False
        return not self.interval.complete or any(block.written is None for block in blocks)

    def lingers(self, now_s: float) -> bool:
        """Something in it has waited for long enough to be sent, and the client has nothing else under way."""
        sent, acknowledged = self._progress()
        return sent > self.pushed.sent and self._answered(acknowledged) and now_s - self.pushed.at_s >= LINGER_S

    def push(self, now_s: float) -> None:
        """Have the client send what lingers, and serve delivery reports, for 1 ms at most.

        Not while it has an answer to come: a flush would have its thread wait for that in a busy loop (docs/decisions,
        0039). A flush that ended before that thread awoke has sent nothing, so there is no waiting for ever either.
        """
        if self.paced:
            self.output.poll(PUSH_S)
            return
        sent, acknowledged = self._progress()
        if self._answered(acknowledged) or now_s - self.pushed.at_s >= PUSH_AGAIN_S:
            self.pushed = Push(now_s, sent, acknowledged)
            self.output.flush(PUSH_S)
        else:
            self.output.poll(PUSH_S)

    def _answered(self, acknowledged: int) -> bool:
        return acknowledged > self.pushed.acknowledged or self.pushed.acknowledged == self.pushed.sent

    def _progress(self) -> tuple[int, int]:
        """Records and blocks that the client was given, and those with a report."""
        blocks = self.blocks
        reports = sum(block.written is not None or block.error is not None for block in blocks)
        return self.interval.sent + len(blocks), self.interval.acknowledged + reports

    @property
    def empty(self) -> bool:
        """Nothing to commit."""
        return not (self.blocks or self.states or self.interval.batches or self.interval.departures)


def begun(output: Any, now_s: float) -> Transaction:
    """One that this producer has begun."""
    return Transaction(CommitInterval(output), pushed=Push(now_s), begun_s=now_s)


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything in the transaction is a fact."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """Nothing in the transaction has happened. `cause` is the client's error, None when we wanted it so.

    `of_records`: a record is at fault, or its target; otherwise it was the group, and all may simply be tried again.
    """

    cause: Any = None
    of_records: bool = False
    successor: TransactionalOutput | None = None  # of its producer, which can't be used any more
    ledger_refused: bool = False  # it is the ledger that is at fault: nothing can be done without it

    def missing_right(self, ledger: str) -> str:
        """Missing right that nothing can go on without, in words; empty if that isn't the cause."""
        if self.ledger_refused:
            return f"no right to write to the ledger topic {ledger}"
        if not self.of_records and self.cause is not None and self.cause.name() == REFUSED_TOPIC:
            return f"no right to read a source: {self.cause.str()}"  # all was taken, but for its offset
        return ""


@dataclass(frozen=True, slots=True)
class Broken:
    """Nobody knows whether it was committed."""

    reason: str


Ending = Committed | Aborted | Broken


def cause_of(transaction: Transaction, ending: Aborted) -> str:
    """Why a transaction was aborted, for the log."""
    if transaction.early:
        return "by the broker's clock, which was set back, some of its records are not due"
    blocks = {block.error.str() for block in transaction.blocks if block.error is not None}
    records = {failure.error.str() for failure in transaction.interval.failures}
    return ending.cause.str() if ending.cause is not None else ", ".join(sorted(records or blocks)) or "too slow"
