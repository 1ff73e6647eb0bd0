"""The gate of pauses, before that of limits: what is due for a paused target, or by a paused policy, waits here.

    due -> its target or policy paused? -- no ------------------------------> limits, then ready
                 | yes                                                          ^
                 +--> waits, held like any record --> resumed: oldest first ----+
                            |
                            +--> expired: dead letter

What waits is late by intent: it doesn't count as overdue, and keeps the engine from no rest. It counts against the
wheel's limits, and can be cancelled and moved. Once something is resumed, its queue is emptied in order of due, some
records a turn, and what fires for it meanwhile goes behind them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sidecar.engine.emission.due_queue import DueQueue
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.condition import Pausable, PauseKind
from sidecar.model.ports import is_over
from sidecar.model.record import Held

RESUMED_MAX: Final = 1_000  # records of a resumed policy in one turn
EXPIRY_MS: Final = 1_000  # between two looks for what has expired: each looks at all that waits

Records = tuple[SourcePartition, list[Held]]


class PauseGate:
    """Owned by the engine's thread. Times are epoch milliseconds."""

    def __init__(self) -> None:
        self.since_ms: Mapping[Pausable, int] = {}  # all that is paused, and since when this engine knows it
        self.holds_any = False  # a target or a policy is paused
        self.keeps_any = False  # or something that was paused has not left yet
        self._targets: frozenset[str] = frozenset()  # paused ones
        self._policies: frozenset[str] = frozenset()
        self._queues: dict[Pausable, DueQueue] = {}  # of all that is paused, and of what is being emptied
        self._expires_ms = -1  # nothing that waits expires before; -1: nothing expires
        self._looked_ms = 0

    # --- what is paused -------------------------------------------------------------------------------------------

    def follow(self, paused: frozenset[Pausable], now_ms: int) -> bool:
        """Keep up with what is paused; returns whether a target or a policy is paused or resumed by that."""
        if paused == self.since_ms.keys():
            return False
        self.since_ms = {one: self.since_ms.get(one, now_ms) for one in paused}
        before = self._targets, self._policies
        self._targets, self._policies = self.names(PauseKind.TARGET), self.names(PauseKind.POLICY)
        self._note_use()
        return before != (self._targets, self._policies)

    def names(self, kind: PauseKind) -> frozenset[str]:
        """Names of what is paused of this kind."""
        return frozenset(one.name for one in self.since_ms if one.kind is kind)

    def _note_use(self) -> None:
        self._queues = {one: queue for one, queue in self._queues.items() if queue.count or one in self.since_ms}
        self.holds_any = bool(self._targets or self._policies)
        self.keeps_any = self.holds_any or bool(self._queues)

    def holds(self, held: Held) -> bool:
        """Whether a record may not be emitted now."""
        return held.target in self._targets or (
            bool(self._policies) and held.policy.rpartition("@")[0] in self._policies
        )

    # --- records --------------------------------------------------------------------------------------------------

    def sift(self, lane: SourcePartition, due: Sequence[Held]) -> list[Held]:
        """Keep what must wait, for a pause or behind others that still do; returns the others."""
        passing: list[Held] = []
        kept: dict[Pausable, list[Held]] = {}
        for held in due:
            if (place := self._place_of(held)) is None:
                passing.append(held)
            else:
                kept.setdefault(place, []).append(held)
        for place, records in kept.items():
            self._put(place, lane, records)
        return passing

    def put(self, lane: SourcePartition, records: Sequence[Held]) -> None:
        """Keep records that `holds` is true of."""
        passing = self.sift(lane, records)
        assert not passing, "they are not paused"

    def _place_of(self, held: Held) -> Pausable | None:
        """A pause comes before a queue that is being emptied: else what leaves that one would come back to it."""
        target = Pausable(PauseKind.TARGET, held.target)
        policy = Pausable(PauseKind.POLICY, held.policy.rpartition("@")[0])
        for one in (target, policy):
            if one in self.since_ms:
                return one
        return next((one for one in (target, policy) if one in self._queues), None)

    def _put(self, place: Pausable, lane: SourcePartition, records: list[Held]) -> None:
        self._queues.setdefault(place, DueQueue()).put(lane, records)
        self._note_expiry(records)
        if lane.order is not None:
            lane.order.held_back(records)

    def _note_expiry(self, records: Iterable[Held]) -> None:
        soonest_ms = min((held.expires_ms for held in records if held.expires_ms >= 0), default=-1)
        if soonest_ms >= 0:
            self._expires_ms = soonest_ms if self._expires_ms < 0 else min(self._expires_ms, soonest_ms)

    def take_expired(self, now_ms: int) -> list[Records]:
        """Take out what has expired, whatever is paused."""
        if not 0 <= self._expires_ms < now_ms or not is_over(now_ms, self._looked_ms + EXPIRY_MS, EXPIRY_MS):
            return []
        self._looked_ms = now_ms
        self._expires_ms = -1
        taken: list[Records] = []
        for queue in self._queues.values():
            taken += queue.take_out(lambda held: 0 <= held.expires_ms < now_ms)
            for records, start in queue.all_runs():
                self._note_expiry(records[start:])
        return self._released(taken)

    def let_through(self, now_ms: int, room_of: Callable[[str], int]) -> list[Records]:
        """Records whose pause is over, oldest first, as many as may go in this turn; `room_of` says how many a target
        could take at all. What something else holds goes on waiting for that.
        """
        through: list[Records] = []
        for place, queue in list(self._queues.items()):
            if place in self.since_ms:
                continue
            room = room_of(place.name) if place.kind is PauseKind.TARGET else RESUMED_MAX
            taken, _ = queue.take(room, now_ms)
            if not queue.count:
                del self._queues[place]
            for lane, records in self._released(taken):
                passing = [held for held in records if not self.holds(held)]
                if len(passing) < len(records):
                    self.put(lane, [held for held in records if self.holds(held)])
                through.append((lane, passing))
        self._note_use()
        return through

    def _released(self, taken: list[Records]) -> list[Records]:
        for lane, records in taken:
            if lane.order is not None:
                lane.order.no_longer_held_back(records)
        return taken

    def withdraw(self, lane: SourcePartition, held: Held) -> bool:
        """Take a record out: it is cancelled, or moved. False: it doesn't wait here."""
        return any(queue.remove(lane, held) for queue in self._queues.values())

    def drop(self, lanes: set[SourcePartition]) -> list[Held]:
        """Forget the records of lanes that were revoked; returns them."""
        return [held for queue in self._queues.values() for held in queue.drop(lanes)]

    # --- to be seen -----------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many records wait here."""
        return sum(queue.count for queue in self._queues.values())

    def _resumed(self) -> Iterator[DueQueue]:
        return (queue for one, queue in self._queues.items() if one not in self.since_ms)

    @property
    def resumed_count(self) -> int:
        """How many of them wait for no pause any more, and have not left yet."""
        return sum(queue.count for queue in self._resumed())

    def oldest_due_ms(self) -> int:
        """Due time of the one of these that has waited longest, -1 when there is none."""
        return min((queue.oldest_due_ms() for queue in self._resumed() if queue.count), default=-1)

    def runs(self, lane: SourcePartition) -> list[tuple[Sequence[Held], int]]:
        """Runs of a lane's waiting records: records, and the index from which on they wait."""
        return [run for queue in self._queues.values() for run in queue.runs(lane)]

    def by_topic(self) -> Counter[str]:
        """How many records wait, by source."""
        return sum((queue.by_topic() for queue in self._queues.values()), Counter[str]())

    def waiting(self) -> dict[Pausable, int]:
        """How many records wait for each pause of a target or a policy."""
        kinds = (PauseKind.TARGET, PauseKind.POLICY)
        return {
            one: queue.count if (queue := self._queues.get(one)) is not None else 0
            for one in self.since_ms
            if one.kind in kinds
        }
