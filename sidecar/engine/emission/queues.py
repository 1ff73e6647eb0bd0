"""Queues between due and the producer: of all records (`Ready`), and of those that are ordered by key (`InOrder`).

Of records whose policy orders them by key none is handed over while one before it may come back:

    fired -> waiting -> handed over, as many as there are -> settled -> the next ones
                ^                        |
                +------ came back -------+   from an aborted transaction, or refused: one at a time from then on

What is handed over together is in one interval. In `exactly_once` it becomes visible together, in order, or comes
back together. In `at_least_once` a record that the brokers refuse may come after those handed over with it.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from sidecar.engine.emission.due_queue import Batch
from sidecar.engine.emission.pauses import PauseGate
from sidecar.engine.emission.rate_limit import RateLimiter
from sidecar.engine.partition.key_order import Order
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.record_queue import earliest
from sidecar.engine.partition.wheel import Load
from sidecar.model.record import Diverted, Held


class NextOfKey(NamedTuple):
    """The first record of a key that may be handed over, by its place in the order."""

    held: Held
    follows: bool  # records before it are handed over and not settled: it goes only with them, at once
    is_single: bool  # no other record of the key goes with it
    is_isolated: bool  # to be sent in a batch of its own


class InOrder:
    """The lanes in which such records have fired. The emitter asks for the next of each key."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._lanes: dict[SourcePartition, None] = {}

    def fired(self, lane: SourcePartition, records: list[Held]) -> list[Held]:
        """Take what needs order; returns the rest."""
        if lane.order is None or not records:
            return records
        plain, taken = lane.order.fired(records)
        if taken:
            self._lanes[lane] = None
            lane.ids.fired(taken)
        return plain

    def free_keys(self) -> Iterator[tuple[SourcePartition, int]]:
        """Keys of which a record may be handed over, lane by lane. Lanes without records are forgotten on the way."""
        for lane in list(self._lanes):
            order = lane.order
            assert order is not None
            for key in list(order.free):
                yield lane, key
            if not order.chains:
                del self._lanes[lane]

    def next_of(self, lane: SourcePartition, key: int, now_ms: int) -> NextOfKey | None:
        """The next record of a key; None when it must wait, isn't due (the clock was set back), or there is none."""
        order = lane.order
        assert order is not None
        chain = order.chains[key]
        if not chain.waiting:
            return None
        held = chain.waiting[0]
        if held.due_ms > now_ms or order.must_wait(key, held.offset, lane.offsets.next, lane.promotion.cursor):
            return None
        isolated = held.offset in order.isolated
        return NextOfKey(held, bool(chain.out), chain.single or isolated, isolated)

    def take(self, lane: SourcePartition, key: int) -> None:
        """Take the next record of a key, which is about to be handed over."""
        assert lane.order is not None
        lane.order.handed_over(key)

    def put_back(self, lane: SourcePartition, key: int, record: NextOfKey) -> None:
        """The producer was full: a record that was taken waits in its place again."""
        order = lane.order
        assert order is not None
        order.came_back(record.held, single=order.chains[key].single, isolated=record.is_isolated)

    def came_back(self, lane: SourcePartition, parcel: Held | Diverted, isolated: bool = False) -> bool:
        """A record that was handed over is to be emitted again, or `isolated`; False: it needs no order."""
        if lane.order is None or isinstance(parcel, Diverted):
            return False
        if lane.dropped or lane.leaving:
            return True  # whoever has the lane next reads it again
        if not lane.order.came_back(parcel, single=True, isolated=isolated):
            return False
        self._lanes[lane] = None
        self._load.add((parcel,))
        return True

    def topics_isolated(self) -> set[str]:
        """Targets of records that wait to be sent alone."""
        ordered = [order for order in self._orders() if order.isolated]
        return {held.target for order in ordered for held in order.waiting if held.offset in order.isolated}

    # --- for the engine -------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> Collection[SourcePartition]:
        """Lanes in which a record has fired that isn't settled, and perhaps others."""
        return self._lanes.keys()

    @property
    def count(self) -> int:
        """Records that have fired and are not handed over."""
        return sum(order.fired_waiting for order in self._orders())

    def due_of(self, lane: SourcePartition) -> Sequence[Held]:
        """Records of one lane that have fired and are not handed over."""
        return lane.order.waiting if lane.order is not None else ()

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest but for a pause, -1 when none waits."""
        return earliest(order.oldest_overdue_ms() for order in self._orders() if order.fired_waiting)

    def _orders(self) -> list[Order]:
        return [lane.order for lane in self._lanes if lane.order is not None]

    def drop(self, lane: SourcePartition) -> Sequence[Held]:
        """Forget a lane that was revoked; returns what waited in it."""
        self._lanes.pop(lane, None)
        waiting = self.due_of(lane)
        if lane.order is not None:
            lane.order.clear_waiting()
        return waiting


class Ready:
    """Batches in the order in which they are handed over."""

    def __init__(self, load: Load) -> None:
        self.batches: deque[Batch] = deque()
        self.pauses = PauseGate()
        self.gate = RateLimiter()
        self._load = load

    def waits_at_gate(self, lane: SourcePartition, held: Held) -> bool:
        """Keep a record there in its turn, held as before it fired; False: nothing is in its way."""
        if self.pauses.holds_any and self.pauses.holds(held):
            self.pauses.put(lane, [held])
        elif not self.gate.active or self.gate.sift(lane, [held]):
            return False
        self._load.add((held,))
        return True

    @property
    def count(self) -> int:
        """Records that are not handed over, but for what waits for a pause."""
        here = sum(len(batch.records) - batch.start for batch in self.batches)
        return here + self.gate.count + self.pauses.resumed_count

    def due_of(self, lane: SourcePartition) -> list[tuple[Sequence[Held], int]]:
        """Runs of this lane's records, and the index from which on they are not handed over."""
        here: list[tuple[Sequence[Held], int]] = [
            (batch.records, batch.start) for batch in self.batches if batch.lane is lane
        ]
        return here + self.gate.runs(lane) + self.pauses.runs(lane)

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest but for a pause, -1 when none waits."""
        waiting = [batch.records[batch.start].due_ms for batch in self.batches]
        return earliest([*waiting, self.gate.oldest_due_ms(), self.pauses.oldest_due_ms()])

    def drop(self, lanes: set[SourcePartition]) -> Iterator[list[Held]]:
        """Forget what belongs to these lanes; gives what was not handed over."""
        dropped = [batch for batch in self.batches if batch.lane in lanes]
        self.batches = deque(batch for batch in self.batches if batch.lane not in lanes)
        for batch in dropped:
            yield batch.records[batch.start :]
        yield self.gate.drop(lanes)
        yield self.pauses.drop(lanes)
