"""The overflow: the coarser levels of the timing wheel, as the engine sees them.

Here stand the words, the five things the engine asks for, and what a loss is; `redis_overflow.py` does them on
Redis, `keys.py` says what lies there. The overflow is expendable: it holds nothing but decisions that are committed in
the ledger, and it says so when something is missing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from sidecar.model.record import Held, Position, Tombstone, TopicPartition


class OverflowFailure(Exception):
    """The overflow did not do what was asked. Every call may be repeated."""


class OverflowUnavailable(OverflowFailure):
    """Nobody answers, or not now. Retry."""


class OverflowRefused(OverflowUnavailable):
    """The overflow answers, and does not do this: a replica, a right that is missing. Other calls may succeed."""


class OverflowFull(OverflowFailure):
    """The overflow takes no more writes (memory or disk). Retry later; reading and settling go on."""


class OverflowLoss(OverflowFailure):
    """Something acknowledged is not there. `hw` is the last change block that is whole, 0 if none is known to be;
    `number`, where the overflow was asked for it, the last one that it says is there.
    """

    def __init__(self, lane: TopicPartition, hw: int, detail: str, number: int = 0) -> None:
        super().__init__(f"the overflow of {lane} has lost data: {detail}")
        self.lane = lane
        self.hw = hw
        self.number = number


class NewerOverflowFormat(OverflowFailure):
    """A newer program has written there. It can't be read, and must not be taken for lost: that would delete it."""


class Change(NamedTuple):
    """One change block of the ledger: records that enter the overflow. At most 2,000 records or 1 MB.

    `struck`: copies that must never be promoted, of earlier blocks.
    """

    lane: TopicPartition
    number: int  # 1, 2, 3 ... per lane
    records: Sequence[Held]
    struck: Sequence[Tombstone] = ()


class Redo(NamedTuple):
    """Records still held of the change blocks `before` + 1 to `last`, to be written again: of one block, as a rule."""

    before: int
    last: int
    records: Sequence[Held]
    struck: Sequence[Tombstone] = ()


class Promotion(NamedTuple):
    """Copies of the records with after < position <= cursor, sorted by position. Behind them nothing is there up to and
    with `vacant`.
    """

    records: list[Held]
    cursor: Position
    vacant: Position


class Overflow(Protocol):
    """Called from one worker thread, never from the engine's. All raise OverflowUnavailable."""

    def last_applied(self, lane: TopicPartition) -> int:
        """The number of the last change block applied, 0 when there is none.

        Raises OverflowLoss when something is missing although the number is there, or the number (-1) has gone and
        records are there: they were being cleared away.
        """

    def last_applied_of(self, lanes: Sequence[TopicPartition]) -> list[int | OverflowLoss]:
        """`last_applied` of each, in order; in place of a number what would have been raised of that lane."""

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """Write change blocks, in order per lane; those already written are passed over.

        Raises OverflowFull, and OverflowLoss when the block before one of these is missing, or something that was
        written. Others may be written.
        """

    def promote(
        self, lane: TopicPartition, after: Position, until: Position, records_max: int, acknowledged: int
    ) -> Promotion:
        """Copy records with after < position <= until, the earliest `records_max` of them; nothing is
        removed.

        The promotion's cursor says how far it came; it is `until` when all were read, and it may stop short
        of it with fewer than `records_max` records. Raises OverflowLoss when a block up to `acknowledged`
        is missing, or something that was written.
        """

    def find(self, lane: TopicPartition, ids: Sequence[str], after: Position, acknowledged: int) -> Mapping[str, Held]:
        """The latest record of each id, where it is behind `after` and not struck out; it may be settled all the same.

        Raises OverflowLoss when a block up to `acknowledged` is missing, or something that was written.
        """

    def tidy(self, lane: TopicPartition, settled: Position, now_ms: int) -> int:
        """Remove slots wholly at or before `settled`, look whether some others are whole, move slots that come near
        to the finer level: a bounded step.

        Returns how many chunks are known to be waiting for the next step, 0 when there is nothing more to do.
        Raises OverflowFull, OverflowLoss.
        """


class RebuildStore(Protocol):
    """The overflow's storage as a rebuild sees it. All raise OverflowUnavailable."""

    def place(self, lane: TopicPartition) -> int:
        """The number of the last change block that is there, -1 when not even that is known."""

    def reset(self, lane: TopicPartition, begin: bool) -> bool:
        """Forget the lane, a page at a time: first its number (`begin`), last of all it is 0. True: call again."""

    def redo(self, lane: TopicPartition, redos: Sequence[Redo], now_ms: int) -> None:
        """Write blocks, in order; those already there are passed over. Raises OverflowFull, OverflowLoss."""

    def read(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """Records with position > after, as `Overflow.promote`; the last promotion's cursor ends in OFFSET_MAX."""

    def places(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """As `read`, but of the records only due times and offsets are there: half the cost."""


def number_or_loss(overflow: Overflow, lane: TopicPartition) -> int | OverflowLoss:
    """`Overflow.last_applied`, or what it raises of this lane."""
    try:
        return overflow.last_applied(lane)
    except OverflowLoss as error:
        return error


def raise_if_lost(lane: TopicPartition, hw: int, keys: Sequence[str], acknowledged: int, number: int = 0) -> None:
    """Raises OverflowLoss when Redis has fewer change blocks than it acknowledged, or lacks one of a script's keys."""
    if hw < 0:
        raise OverflowLoss(lane, 0, f"the key {keys[-hw - 1]} has gone: evicted, deleted or expired", number)
    if hw < acknowledged:
        detail = f"blocks up to {acknowledged} were acknowledged, only those up to {hw} are there"
        raise OverflowLoss(lane, hw, detail)
