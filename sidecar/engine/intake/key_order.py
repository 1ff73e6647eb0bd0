"""Holding records in the order of their keys: what was read takes its place behind what is held of the same key.

    read -> behind the last one of its key -> wheel | overflow
             |
             +- waits, and with it all that is read of the lane after it:
                - until it is known which keys the overflow has (once, when a lane begins)
                - until the one before it has come from the overflow, when it is due as soon
                - until the one before it has found its target, or others of its id
                - while as many records are parked as the policy allows

Waiting keeps the order of the offsets, so control records act on what was read before them, as ever. Nothing is lost by
it: what waits has an open offset, and intake of the lane pauses meanwhile.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from xxhash import xxh3_64_intdigest

from policies.decision import ORDER_FULL
from policies.headers import OFFSET_MAX
from policies.model import Order as OrderPolicy
from policies.table import PolicyTable
from sidecar.engine.intake.decide import (
    Item,
    Read,
    ReadyToHold,
    held_of,
    item_offset,
    list_of,
    name_of,
    offset_of,
    refused_of,
)
from sidecar.engine.partition.exits import given_up
from sidecar.engine.partition.key_order import Key, Order, Tail
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.model.ports import is_over
from sidecar.model.record import AwaitingTarget, Diverted, Held, Position
from sidecar.overflow.interface import OverflowLoss, OverflowUnavailable, Promotion

log = logging.getLogger(__name__)
SCAN_RECORDS: Final = 10_000  # a page
RETRY_MS: Final = 500


class OverflowScan:
    """Reading once, page by page, what the overflow has of a lane from its cursor on.

    What is put there meanwhile may come, too. What is promoted meanwhile doesn't: it may be settled, and gone, before
    it is read here.
    """

    def __init__(self, lane: SourcePartition) -> None:
        self.after: Position | None = lane.promotion.cursor if lane.overflow_used else None  # None: all is read
        self._lane = lane
        self._page: Future[Promotion] | None = None
        self._at_ms = 0  # not before

    def step(self, rebuild: RebuildWorker, now_ms: int) -> Sequence[Held]:
        """The next page, once it is there; it has nothing that was struck or settled before it came."""
        lane = self._lane
        if self.after is None:
            return ()
        if self._page is None:
            self.after = max(self.after, lane.promotion.cursor)
            if lane.loss is None and is_over(now_ms, self._at_ms, RETRY_MS):
                self._page = rebuild.read(lane.id, self.after, SCAN_RECORDS, lane.acknowledged)
            return ()
        if not self._page.done():
            return ()
        done, self._page = self._page, None
        try:
            page = done.result()
        except OverflowLoss as error:
            lane.note_loss(error.hw, str(error))
            return ()
        except OverflowUnavailable as error:
            self._at_ms = now_ms + RETRY_MS
            log.warning(
                "what Redis holds of a partition isn't known yet",
                extra={"source_partition": str(lane.id), "problem": str(error)},
            )
            return ()
        self.after = None if page.cursor.offset == OFFSET_MAX else page.cursor
        # What is behind it is passed over: see `SourcePartition.promoted`.
        known_until, promotion = lane.offsets.base + len(lane.offsets.done), lane.promotion
        return [
            held
            for held in page.records
            if held.offset not in promotion.skip and held.position > promotion.cursor and held.offset < known_until
        ]


SETTLED_MS: Final = 60_000  # after its due time the place of a record that was struck is forgotten

_ASK: Final = object()  # not known yet


class Ordering:
    """Owned by the engine's thread, which holds what `take` and `step` return: that needs to wait no longer."""

    def __init__(self, overflow: OverflowWorker, rebuild: RebuildWorker) -> None:
        self._overflow = overflow
        self._rebuild = rebuild
        self._table: PolicyTable | None = None
        self._orders: dict[str, OrderPolicy | None] = {}  # by the policy's label
        self._names: dict[str, frozenset[str]] = {}  # policies that order, by source topic
        self._scans: dict[SourcePartition, OverflowScan] = {}

    @property
    def is_scanning(self) -> bool:
        """The overflow of some lane is being read."""
        return bool(self._scans)

    def waits(self, lane: SourcePartition) -> bool:
        """Whether this lane's intake should wait."""
        return lane.order is not None and bool(lane.order.queue)

    # --- what was read --------------------------------------------------------------------------------------------

    def watch(self, lane: SourcePartition, table: PolicyTable) -> None:
        """Look after a lane as soon as a policy of its topic orders by key: before any of its records is read or fires,
        if the policy was there before the lane.
        """
        if table is not self._table:
            self._table = table
            self._orders.clear()
            self._names.clear()
        topic = lane.id.topic
        names = self._names.get(topic)
        if names is None:
            names = frozenset(rule.policy.name for rule in table.rules(topic) if rule.policy.order)
            self._names[topic] = names
        order = lane.order
        if order is None:
            if not names:
                return
            order = lane.order = Order(self._key_of)
            lane.agenda.stir(lane)
        elif names == order.names:
            return
        fresh, order.names = names - order.names, names
        if not fresh:
            return
        if lane.overflow_used:
            order.sought |= fresh
            self._scans[lane] = OverflowScan(lane)
        for held in lane.wheel.records():
            if (key := self._key_of(held)) is not None:
                order.note(key, held, False, lane.promotion.cursor)
        for held in lane.puts:
            order.redone(held)
        for change in lane.changes:
            for held in change.records.values():
                order.redone(held)

    def take(self, lane: SourcePartition, read: Read, now_ms: int) -> ReadyToHold | None:
        """Take records decided a moment ago, of a lane that is watched; returns those of the lane that may be held."""
        order = lane.order
        assert order is not None
        if not order.queue and not self._needs_order(read):
            return ReadyToHold(lane, read, self._near_ms(lane, now_ms))
        items = [Item(record.offset, 0, record) for record in read.held]
        items += [Item(offset_of(record), 1, record) for record in read.others]
        items += [Item(offset_of(record), 2, record) for record in read.named]
        items.sort(key=item_offset)
        order.queue.extend(items)
        return self._go_on(lane, order, now_ms)

    def _needs_order(self, read: Read) -> bool:
        records = (record for kind in read for record in kind)
        return any(self._key_of(held_of(record) or refused_of(record)) is not None for record in records)

    def step(self, lanes: Iterable[SourcePartition], table: PolicyTable, now_ms: int) -> list[ReadyToHold]:
        """Look after lanes from their first moment on; returns what waited for something that has come.

        `lanes`: all that are new or have work, and all when the table is new.
        """
        for lane in [lane for lane in self._scans if lane.dropped or lane.leaving]:
            del self._scans[lane]
        ready = []
        for lane in lanes:
            if table.orders:
                self.watch(lane, table)
            order = lane.order
            if order is None or lane.dropped or lane.leaving:
                continue
            if order.sought:
                self._look(lane, order, now_ms)
            elif lane.offsets.next >= lane.recovered_until and not order.queue:
                order.all_read_again(lane.recovered_until)
                order.forget_left(now_ms - SETTLED_MS, lane.promotion.cursor)
            if order.queue and (some := self._go_on(lane, order, now_ms)) is not None:
                ready.append(some)
        return ready

    def _go_on(self, lane: SourcePartition, order: Order, now_ms: int) -> ReadyToHold | None:
        ready = Read([], [], [])
        near_ms = self._near_ms(lane, now_ms)
        order.pass_time(now_ms)
        while order.queue and not order.sought:
            item = order.queue[0]
            held = held_of(item.record)
            key = self._key_of(held)
            if held is None or key is None:
                if (key := self._key_of(refused_of(item.record))) is not None:
                    order.refuse(key, item.offset)
                list_of(ready, item).append(item.record)
            elif (behind := self._behind(lane, order, key, held, now_ms)) is None:
                break
            else:
                self._file(lane, order, key, item, behind, near_ms, ready)
            order.queue.popleft()
        return ReadyToHold(lane, ready, near_ms) if any(ready) else None  # a list of it has something

    def _near_ms(self, lane: SourcePartition, now_ms: int) -> int:
        return self._overflow.near_ms(lane, now_ms)

    def _behind(self, lane: SourcePartition, order: Order, key: Key, held: Held, now_ms: int) -> Held | Diverted | None:
        """The record as it takes its place behind the one before it; None: it has to wait."""
        if key in order.unplaced or key in order.refused:
            return None
        tail = order.before(key, held.offset)
        if tail is None:
            return held
        if tail.due_ms > held.due_ms:
            held = held._replace(due_ms=tail.due_ms)
        again = held.offset < lane.recovered_until  # what was read after it may be waiting for it
        near = held.due_ms <= max(now_ms + self._overflow.horizon_ms, lane.promotion.reach.due_ms)
        if near and tail.ahead_of(lane.promotion.cursor) and (not again or lane.promotion.promised is not None):
            return None
        if tail.due_ms > now_ms or key in order.chains:
            policy = self._orders[held.policy]
            if policy is not None and order.parked >= policy.parked_max and not again:
                full = given_up(lane, held, ORDER_FULL)
                return full if policy.when_full == "dead_letter" else None
            order.park(held.due_ms)
        return held

    # tidy: one record and where it goes
    def _file(
        self,
        lane: SourcePartition,
        order: Order,
        key: Key,
        item: Item,
        behind: Held | Diverted,
        near_ms: int,
        ready: Read,
    ) -> None:
        if isinstance(behind, Diverted):
            order.refuse(key, behind.offset)
            ready.others.append(behind)
        elif item.kind == 0:
            stored = behind.due_ms > near_ms or self._hidden(lane, order, key, behind) is not None
            order.note(key, behind, stored, lane.promotion.cursor)
            if stored:
                self._store(lane, order, behind)
            else:
                ready.held.append(behind)
                if behind.offset < lane.recovered_until:
                    order.returns(key, behind.offset)
        else:
            order.wait_for_place(key, behind.offset)
            if behind.offset < lane.recovered_until:
                order.returns(key, behind.offset)
            record = AwaitingTarget(behind, item.record.headers) if isinstance(item.record, AwaitingTarget) else behind
            list_of(ready, item).append(record)

    # --- what is held one by one ----------------------------------------------------------------------------------

    def holds_up(self, lane: SourcePartition, held: Held) -> bool:
        """Before a record is held that had to wait for something; True: it is seen to here."""
        order = lane.order
        if order is None:
            return False
        order.placed(held.offset)
        key = order.key_of(held)
        if key is None or held.source >= 0:  # who was moved goes its own way
            return False
        reach = lane.promotion.promised or lane.promotion.cursor
        hidden = self._hidden(lane, order, key, held)
        stored = held.due_ms > reach.due_ms or (hidden is not None and held.position > reach)
        if hidden is not None and not stored:
            order.block(key, hidden)
        order.note(key, held, stored, lane.promotion.cursor)
        if stored:
            self._store(lane, order, held)
            order.returned(held.offset)
            lane.ids.know((held,))
        return stored

    def _hidden(self, lane: SourcePartition, order: Order, key: Key, held: Held) -> Tail | None:
        """The one that it comes behind, if the overflow has it and not the wheel."""
        tail = order.before(key, held.offset)
        if tail is None or held.due_ms < tail.due_ms:
            return None
        return tail if tail.ahead_of(lane.promotion.cursor) else None

    def _store(self, lane: SourcePartition, order: Order, held: Held) -> None:
        order.on_the_way.add(held.offset)
        lane.put([held])

    def gone(self, lane: SourcePartition, held: Held) -> None:
        """A record that waited for its target has left."""
        if lane.order is not None:
            lane.order.placed(held.offset)
            lane.order.returned(held.offset)

    # --- what the overflow has ------------------------------------------------------------------------------------

    def _look(self, lane: SourcePartition, order: Order, now_ms: int) -> None:
        """Read the lane's overflow once: which keys have something there."""
        scan = self._scans[lane]
        order.found(scan.step(self._rebuild, now_ms), True, lane.promotion.cursor)
        if scan.after is None:
            order.sought = frozenset()
            del self._scans[lane]

    def _key_of(self, held: Held | Diverted | None) -> Key | None:
        """By what a record is ordered: the hash of its policy's name and its key; None: it needs no order."""
        if held is None or held.key is None:
            return None
        policy = self._orders.get(held.policy, _ASK)
        if policy is _ASK:
            assert self._table is not None
            versioned = self._table.policies.get(name_of(held.policy))
            policy = self._orders[held.policy] = versioned.policy.order if versioned is not None else None
        return xxh3_64_intdigest(name_of(held.policy).encode() + b"\0" + held.key) if policy else None
