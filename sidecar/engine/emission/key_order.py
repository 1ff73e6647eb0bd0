"""Emission of records whose policy orders them by key: none is handed over while one before it may come back.

    fired -> waiting -> handed over, as many as there are -> settled -> the next ones
                ^                        |
                +------ came back -------+   from an aborted transaction, or refused: one at a time from then on

What is handed over together is in one generation. In `exactly_once` it becomes visible together, in order, or comes
back together. In `at_least_once` a record that the brokers refuse may come after those handed over with it.
"""

from collections.abc import Callable, Sequence

from sidecar.engine.partition.key_order import Order
from sidecar.engine.partition.partition import Lane
from sidecar.engine.partition.wheel import Load
from sidecar.model.record import Diverted, Held

HandOver = Callable[[Lane, Held, int, bool], None]
GoesAtOnce = Callable[[Held, int], bool]


class InOrder:
    """The lanes in which such records have fired. `goes_at_once` is false for what may have to wait for something;
    `hand_over` takes a record, and whether it is to be sent in a batch of its own.
    """

    def __init__(self, load: Load, goes_at_once: GoesAtOnce, hand_over: HandOver) -> None:
        self._load = load
        self._goes_at_once = goes_at_once
        self._hand_over = hand_over
        self._lanes: dict[Lane, None] = {}

    def fired(self, lane: Lane, records: list[Held]) -> list[Held]:
        """Take what needs order; returns the rest."""
        if lane.order is None or not records:
            return records
        plain, taken = lane.order.fired(records)
        if taken:
            self._lanes[lane] = None
            lane.ids.fired(taken)
        return plain

    def emit(self, now_ms: int, budget: int) -> int:
        """Hand over what may go; returns how many. Raises BufferError when the producer is full."""
        sent = 0
        for lane in list(self._lanes):
            order = lane.order
            assert order is not None
            for key in list(order.free):
                if sent >= budget:
                    break
                sent += self._emit_key(lane, key, now_ms, budget - sent)
            if not order.chains:
                del self._lanes[lane]
        return sent

    def _emit_key(self, lane: Lane, key: int, now_ms: int, budget: int) -> int:
        order = lane.order
        assert order is not None
        chain = order.chains[key]
        sent = 0
        while chain.waiting and sent < budget:
            held = chain.waiting[0]
            if held.due_ms > now_ms or order.must_wait(key, held.offset, lane.next, lane.cursor):
                break  # not due: the clock was set back since it fired
            alone = held.offset in order.alone
            plain = not (chain.single or alone) and self._goes_at_once(held, now_ms)
            if chain.out and not plain:
                break  # what comes before it is to be settled first
            order.handed_over(key)
            try:
                self._hand_over(lane, held, now_ms, alone)
            except BufferError:
                order.came_back(held, single=chain.single, alone=alone)
                raise
            self._load.remove((held,))
            sent += 1
            if not plain:
                break
        return sent

    def came_back(self, lane: Lane, parcel: Held | Diverted, alone: bool = False) -> bool:
        """A record that was handed over is to be emitted again, or `alone`; False: it needs no order."""
        if lane.order is None or isinstance(parcel, Diverted):
            return False
        if lane.dropped or lane.leaving:
            return True  # whoever has the lane next reads it again
        if not lane.order.came_back(parcel, single=True, alone=alone):
            return False
        self._lanes[lane] = None
        self._load.add((parcel,))
        return True

    def topics_alone(self) -> set[str]:
        """Targets of records that wait to be sent alone."""
        ordered = [order for order in self._orders() if order.alone]
        return {held.target for order in ordered for held in order.waiting if held.offset in order.alone}

    # --- for the engine -------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Records that have fired and are not handed over."""
        return sum(order.fired_waiting for order in self._orders())

    def due_of(self, lane: Lane) -> Sequence[Held]:
        """Records of one lane that have fired and are not handed over."""
        return lane.order.waiting if lane.order is not None else ()

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest, -1 when none waits."""
        oldest = (order.oldest_due_ms() for order in self._orders() if order.fired_waiting)
        return min(oldest, default=-1)

    def _orders(self) -> list[Order]:
        return [lane.order for lane in self._lanes if lane.order is not None]

    def drop(self, lane: Lane) -> Sequence[Held]:
        """Forget a lane that was revoked; returns what waited in it."""
        self._lanes.pop(lane, None)
        waiting = self.due_of(lane)
        if lane.order is not None:
            lane.order.clear_waiting()
        return waiting
