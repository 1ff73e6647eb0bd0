"""The overflow as a dict: the same answers as `RedisOverflow` (test_fake_overflow.py), without a server.

What a server can do to a caller is done by `failing`: refuse, or do as asked and lose the answer.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from policies.headers import OFFSET_MAX
from sidecar.model.record import Held, Position, Tombstone, TopicPartition, held_id, just_before
from sidecar.overflow.interface import Change, Overflow, OverflowLoss, Promotion, RebuildStore, Redo, number_or_loss

END = Position(OFFSET_MAX, OFFSET_MAX)
Failing = Callable[[str, bool], None]  # (method, before or after its effect): raises what the caller is to see
NewOverflow = Callable[[Failing], "FakeOverflow"]


def _never(method: str, after: bool) -> None:
    """All is well."""


class Store(Overflow, RebuildStore, Protocol):
    """All that a process asks the overflow for."""


class FakeOverflow:
    """Shared by all replicas, as a server is; outlives them."""

    finds_each = True  # of several records with one id, whichever is meant
    rewritable = True  # somebody else may write here

    def __init__(self, failing: Failing = _never) -> None:
        self.hw: dict[TopicPartition, int] = {}
        self.records: dict[TopicPartition, list[Held]] = defaultdict(list)  # sorted by position
        self.struck: dict[TopicPartition, set[int]] = defaultdict(set)
        self.damaged: dict[TopicPartition, set[int]] = defaultdict(set)  # a header without its content
        self.gone: dict[TopicPartition, str] = {}  # which key of these lanes has gone, though the number has not
        self.unnamed: dict[TopicPartition, set[int]] = {}  # the index has gone that would find these
        self.lost_once: set[TopicPartition] = set()  # lanes that lacked something at some time
        self.failing = failing

    def connected(self) -> "Store":
        """Store that one process talks to."""
        return self

    def last_applied(self, lane: TopicPartition) -> int:
        """See `Overflow.last_applied`."""
        self.failing("watermark", False)
        self._check(lane)
        return self._number(lane)

    def last_applied_of(self, lanes: Sequence[TopicPartition]) -> list[int | OverflowLoss]:
        """See `Overflow.last_applied_of`."""
        return [number_or_loss(self, lane) for lane in lanes]

    def apply(self, changes: Sequence[Change], now_ms: int) -> None:
        """See `Overflow.apply`."""
        self.failing("apply", False)
        for change in changes:
            self._check(change.lane)
            hw = self._number(change.lane)
            if hw < change.number - 1:
                raise OverflowLoss(change.lane, hw, f"block {change.number} comes next, but only {hw} are there")
            if hw == change.number - 1:
                self.hw[change.lane] = change.number
                self._add(change.lane, change.records, change.struck)
            self.failing("apply", True)

    def promote(
        self, lane: TopicPartition, after: Position, until: Position, records_max: int, acknowledged: int
    ) -> Promotion:
        """See `Overflow.promote`."""
        self.failing("promote", False)
        self._check(lane, acknowledged)
        records = self.records[lane]
        first = bisect_right(records, after, key=lambda held: held.position)
        last = bisect_right(records, until, key=lambda held: held.position)
        found = records[first : min(last, first + records_max)]
        if any(held.offset in self.damaged[lane] for held in found):
            raise OverflowLoss(lane, 0, "a header without its content")
        cursor = until if last - first <= records_max else found[-1].position
        found = [held for held in found if held.offset not in self.struck[lane]]
        behind = next((held.position for held in records[first:] if held.position > cursor), None)
        self.failing("promote", True)
        return Promotion(found, cursor, just_before(behind) if behind is not None else END)

    def find(self, lane: TopicPartition, ids: Sequence[str], after: Position, acknowledged: int) -> dict[str, Held]:
        """See `Overflow.find`."""
        self.failing("find", False)
        self._check(lane, acknowledged)
        self._check_index(lane)
        latest: dict[str, Held] = {}
        unnamed = self.unnamed.get(lane, ())
        for held in sorted(self.records[lane], key=lambda held: held.offset):
            if (message_id := held_id(held)) in ids and held.offset not in unnamed:
                latest[message_id or ""] = held
        if any(held.offset in self.damaged[lane] for held in latest.values()):
            raise OverflowLoss(lane, 0, "a header without its content")
        self.failing("find", True)
        struck = self.struck[lane]
        return {key: held for key, held in latest.items() if held.offset not in struck and held.position > after}

    def tidy(self, lane: TopicPartition, settled: Position, now_ms: int) -> int:
        """See `Overflow.tidy`. Slots are not modelled: everything settled goes at once."""
        self.failing("tidy", False)
        self._check(lane)
        self._check_index(lane)
        self.struck[lane] -= {held.offset for held in self.records[lane] if held.position <= settled}
        self.records[lane] = [held for held in self.records[lane] if held.position > settled]
        self.failing("tidy", True)
        return 0

    # --- what a rebuild asks for ----------------------------------------------------------------------------------

    def place(self, lane: TopicPartition) -> int:
        """See `RebuildStore.place`."""
        self.failing("place", False)
        return self.hw.get(lane, -1) if lane not in self.gone else -1

    def reset(self, lane: TopicPartition, begin: bool) -> bool:
        """See `RebuildStore.reset`. A page is half of what is there."""
        self.failing("reset", False)
        if begin:
            self.hw.pop(lane, None)
            self.gone.pop(lane, None)
        records = self.records[lane]
        if not begin and lane in self.hw:
            return False
        if records:
            gone = records[: (len(records) + 1) // 2]
            del records[: len(gone)]
            self.damaged[lane] -= {held.offset for held in gone}
            self.failing("reset", True)
            return True
        if lane not in self.hw:
            self.struck[lane].clear()
            self.unnamed.pop(lane, None)
            self.hw[lane] = 0
        self.failing("reset", True)
        return False

    def redo(self, lane: TopicPartition, redos: Sequence[Redo], now_ms: int) -> None:
        """See `RebuildStore.redo`."""
        for redo in redos:
            self.failing("redo", False)
            self._check(lane)
            hw = self.hw.get(lane, -1)
            if hw < redo.before:
                raise OverflowLoss(lane, max(hw, 0), f"blocks up to {redo.before} were there")
            if hw < redo.last:
                self._add(lane, redo.records, redo.struck)
                self.hw[lane] = redo.last
            self.failing("redo", True)

    def read(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Promotion:
        """See `RebuildStore.read`."""
        return self.promote(lane, after, Position(OFFSET_MAX, OFFSET_MAX), records_max, acknowledged)

    places = read

    def _number(self, lane: TopicPartition) -> int:
        """Raises OverflowLoss when it has gone and there is something all the same: a reset broke off."""
        if lane not in self.hw and self.records[lane]:
            raise OverflowLoss(lane, 0, "its number has gone", -1)
        return self.hw.get(lane, 0)

    def _add(self, lane: TopicPartition, fresh: Sequence[Held], struck: Iterable[Tombstone]) -> None:
        """One copy of each offset, as readers see it."""
        self.struck[lane].update(copy.position.offset for copy in struck)
        records = self.records[lane]
        known = {held.offset for held in records}
        records += [held for held in fresh if held.offset not in known]
        records.sort(key=lambda held: held.position)

    def _check(self, lane: TopicPartition, acknowledged: int = 0) -> None:
        """Raises OverflowLoss when a key has gone, or a block that was acknowledged."""
        if lane in self.gone:
            raise OverflowLoss(lane, 0, f"{self.gone[lane]} gone", self.hw.get(lane, 0))
        if self.hw.get(lane, 0) < acknowledged:
            raise OverflowLoss(lane, self.hw.get(lane, 0), f"{acknowledged} blocks were acknowledged")

    def _check_index(self, lane: TopicPartition) -> None:
        if lane in self.unnamed:
            raise OverflowLoss(lane, 0, "the index has gone")

    # --- what becomes of a server ---------------------------------------------------------------------------------

    def wipe(self) -> None:
        """Everything is gone."""
        self.lost_once.update(self.hw)
        self.hw.clear()
        self.gone.clear()
        self.unnamed.clear()
        self.records.clear()
        self.struck.clear()
        self.damaged.clear()

    def copy(self) -> "Copy":
        """A backup."""
        records = {lane: list(records) for lane, records in self.records.items()}
        struck = {lane: set(offsets) for lane, offsets in self.struck.items()}
        unnamed = {lane: set(offsets) for lane, offsets in self.unnamed.items()}
        return dict(self.hw), records, struck, dict(self.gone), unnamed

    def restore(self, copy: "Copy") -> None:
        """An older copy of everything."""
        self.wipe()
        hw, records, struck, gone, unnamed = copy
        self.gone.update(gone)
        self.unnamed.update({lane: set(offsets) for lane, offsets in unnamed.items()})
        self.struck.update({lane: set(offsets) for lane, offsets in struck.items()})
        self.hw.update(hw)
        self.records.update({lane: list(kept) for lane, kept in records.items()})

    def damage(self, lane: TopicPartition, offset: int) -> None:
        """The content of one record is gone, its header is not."""
        self.lost_once.add(lane)
        self.damaged[lane].add(offset)

    def lose_level(self, lane: TopicPartition, from_ms: int) -> None:
        """The key is gone that has all headers due from then on."""
        self._lose(lane, "a level has")
        self.records[lane] = [held for held in self.records[lane] if held.due_ms < from_ms]

    def lose_tombstones(self, lane: TopicPartition) -> None:
        """The key is gone that has all that was struck out."""
        self._lose(lane, "what was struck out has")
        self.struck[lane].clear()

    def lose_index(self, lane: TopicPartition) -> None:
        """All shards of the index are gone: who looks for an id in one misses it."""
        self.lost_once.add(lane)
        if any(held_id(held) is not None for held in self.records[lane]):
            self.unnamed.setdefault(lane, set()).update(held.offset for held in self.records[lane])

    def redirect(self, lane: TopicPartition, offset: int, target: str, dead_letter: str) -> None:
        """Somebody else has written here, and this record is to go there, or there when it expires."""
        self.records[lane] = [
            held._replace(target=target, dead_letter=dead_letter) if held.offset == offset else held
            for held in self.records[lane]
        ]

    def _lose(self, lane: TopicPartition, what: str) -> None:
        self.lost_once.add(lane)
        if self.hw.get(lane, 0) > 0:  # else nothing was written there
            self.gone.setdefault(lane, what)


Copy = tuple[
    dict[TopicPartition, int],
    dict[TopicPartition, list[Held]],
    dict[TopicPartition, set[int]],
    dict[TopicPartition, str],
    dict[TopicPartition, set[int]],
]
