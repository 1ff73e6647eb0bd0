"""Actions by id: control records, and records that replace the one before them, meet the held record of their id.

    cancel                 the record leaves: cancelled; the control record: applied
    reschedule, fire       the record goes on under the offset of its control record, due then or now: moved
    with if-offset         only if the record is held under this very offset: not one that came, or was moved, since
    same id, same key      the record before leaves: replaced; this one is held as any other. But not by one that has an
                           origin: the id came with the headers of what was emitted, and is no order

A moved record is, for the lane, one record that leaves and another that is held: offsets stay unique in done marks,
wheel, overflow and ledger. The offset at which it came is in `Held.source`; after a crash its payload is read from
there again.

Records with an id meet in the order of their offsets: one queue for each id, of what waits for the overflow's answer,
for a target's, or for a payload. A record is found in memory (`Identities`) or, if the overflow was ever used, in its
index. What has left the wheel to be emitted can't be reached any more: too late. An action that finds nothing is
applied, too.

Nothing happens here at once but in memory: the rows go into the lane's next block, together.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from policies.decision import CANCEL, FIRE
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.intake.decide import Named, offset_of
from sidecar.engine.intake.holding import Holding
from sidecar.engine.partition.partition import HeldIn, SourcePartition
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.model.header_codec import complete, headers_of, split
from sidecar.model.ports import SourceRecord, SourceUnavailable, is_over
from sidecar.model.record import AwaitingTarget, Control, Diverted, Held, Outcome, ReplayedMove, held_id

log = logging.getLogger(__name__)

ASKED_MAX: Final = 500  # ids in one question to the overflow
FETCHED_MAX: Final = 500  # payloads at a time
RETRY_MS: Final = 500

_ASK: Final = object()  # in place of what the overflow has: not known yet


@dataclass(slots=True)
class _Waiting:
    """Records of one lane that wait here, by id, and the questions about them."""

    queues: dict[str, deque[Named]] = field(default_factory=dict)  # by id, in the order of the offsets
    unasked: list[str] = field(default_factory=list)
    asking: bool = False
    unfetched: list[ReplayedMove] = field(default_factory=list)
    fetch: Future[Mapping[int, SourceRecord]] | None = None
    fetching: list[ReplayedMove] = field(default_factory=list)
    fetch_at_ms: int = 0


class Actions:
    """Owned by the engine's thread."""

    def __init__(
        self,
        emitter: Emitter,
        holding: Holding,
        overflow: OverflowWorker,
        rebuild: RebuildWorker,
        tally: EngineCounters,
    ) -> None:
        self._emitter = emitter
        self._holding = holding
        self._overflow = overflow
        self._rebuild = rebuild
        self._tally = tally
        self._lanes: dict[SourcePartition, _Waiting] = {}
        self._now_ms = 0

    @property
    def count(self) -> int:
        """How many records wait here."""
        return sum(len(queue) for waiting in self._lanes.values() for queue in waiting.queues.values())

    def first_waiting(self, lane: SourcePartition) -> int | None:
        """The lowest offset of this lane that waits here; None: none does."""
        waiting = self._lanes.get(lane)
        return min((offset_of(queue[0]) for queue in waiting.queues.values()), default=None) if waiting else None

    # --- what was read --------------------------------------------------------------------------------------------

    def take(self, lane: SourcePartition, named: Iterable[Named], now_ms: int) -> None:
        """Records with an id, and control records, in the order of their offsets."""
        self._now_ms = now_ms
        waiting = self._lanes.setdefault(lane, _Waiting())
        for item in named:
            message_id = _id_of(item)
            queue = waiting.queues.get(message_id)
            if queue is None:
                waiting.queues[message_id] = queue = deque((item,))
                self._go_on(lane, waiting, message_id, _ASK)
            else:
                queue.append(item)

    def arrived(self, lane: SourcePartition, held: Held) -> bool:
        """The target of a record is there, so it may be held; False when nothing waits for it here."""
        return self._replace_first(lane, held, held)

    def turned_away(self, lane: SourcePartition, held: Held) -> None:
        """The target of a record isn't there: it has left."""
        self._replace_first(lane, held, None)

    def _replace_first(self, lane: SourcePartition, of: Held, by: Held | None) -> bool:
        waiting, message_id = self._lanes.get(lane), held_id(of) if of.trailer else None
        queue = waiting.queues.get(message_id) if waiting is not None and message_id is not None else None
        if waiting is None or message_id is None or not queue:
            return False
        first = queue[0]
        if not isinstance(first, AwaitingTarget) or first.held.offset != of.offset:
            return False
        queue.popleft()
        if by is not None:
            queue.appendleft(by)
        self._go_on(lane, waiting, message_id, _ASK)
        return True

    # --- one id ---------------------------------------------------------------------------------------------------

    def _go_on(self, lane: SourcePartition, waiting: _Waiting, message_id: str, elsewhere: Any) -> None:
        """Let the queue of an id act, as far as nothing has to be asked. `elsewhere`: what the overflow has of it."""
        queue = waiting.queues[message_id]
        while queue:
            item = queue[0]
            if isinstance(item, AwaitingTarget):
                self._emitter.leave(lane, item)
                return
            if isinstance(item, ReplayedMove):
                waiting.unfetched.append(item)
                return
            here = lane.ids.get(message_id)
            if elsewhere is _ASK and lane.overflow_used and not _is_meant(item, here):
                waiting.unasked.append(message_id)
                return
            queue.popleft()
            found = _last_before(item, here, elsewhere)
            in_memory = found is here
            if isinstance(item, Control) and found is not None and item.if_offset not in (-1, found.offset):
                _apply(lane, item, -1)  # another one than was meant: it stays where it is
                continue
            if isinstance(item, Held) and found is not None and not _replaces(item, found):
                self._holding.hold(lane, item)  # beside the other
                continue
            if found is elsewhere:
                elsewhere = None  # from here on, who is held with this id is in memory
            if isinstance(item, Control):
                self._obey(lane, item, found, in_memory)
            else:
                if found is not None:
                    self._strike(lane, found, in_memory, Outcome.REPLACED, item.offset)
                self._holding.hold(lane, item)
        del waiting.queues[message_id]

    def _obey(self, lane: SourcePartition, control: Control, found: Held | None, in_memory: bool) -> None:
        if found is None:
            _apply(lane, control, -1)
        elif control.action == CANCEL:
            self._strike(lane, found, in_memory, Outcome.CANCELLED, control.offset)
            _apply(lane, control, found.offset)
        else:
            due_ms = self._now_ms if control.action == FIRE else control.due_ms
            moved = found._replace(due_ms=due_ms, offset=control.offset, source=found.came_at)
            self._strike(lane, found, in_memory, Outcome.MOVED, control.offset, moved)
            self._holding.hold(lane, moved)

    # tidy: what is written about it in the ledger
    def _strike(
        self,
        lane: SourcePartition,
        held: Held,
        in_memory: bool,
        outcome: Outcome,
        related: int,
        carried: Held | None = None,
    ) -> None:
        """Take a record from where it is held, and let it leave."""
        if lane.order is not None:
            lane.order.struck(held)
        if lane.quota is not None:
            lane.quota.struck(held, carried)
        if in_memory:
            lane.ids.forget((held,))
        if lane.take_out(held, in_memory) is HeldIn.WHEEL:
            self._emitter.withdraw(lane, held)
        departure = Diverted(
            held.due_ms, held.offset, outcome, "", "", None, None, [], held.policy, held.attempt, held_id(held),
            related, carried, held.size,
        )  # fmt: skip
        lane.depart((departure,))

    # --- what is asked for ----------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Ask the overflow and the source for what is waited for."""
        self._now_ms = now_ms
        for lane, waiting in list(self._lanes.items()):
            if lane.dropped or lane.leaving or not waiting.queues:
                del self._lanes[lane]
                continue
            if waiting.unasked and not waiting.asking:
                self._ask(lane, waiting)
            if waiting.fetch is not None and waiting.fetch.done():
                self._take_payloads(lane, waiting)
            if waiting.unfetched and waiting.fetch is None and is_over(now_ms, waiting.fetch_at_ms, RETRY_MS):
                waiting.fetching = waiting.unfetched[:FETCHED_MAX]
                del waiting.unfetched[:FETCHED_MAX]
                offsets = sorted({item.held.came_at for item in waiting.fetching})
                waiting.fetch = self._rebuild.fetch(lane.id, lane.cuts, offsets)

    def _ask(self, lane: SourcePartition, waiting: _Waiting) -> None:
        ids = waiting.unasked[:ASKED_MAX]

        def found(answers: Mapping[str, Held]) -> None:
            waiting.asking = False
            if lane.dropped or lane.leaving:
                return
            for message_id in ids:
                held = answers.get(message_id)
                if held is not None and (held.position <= lane.promotion.cursor or held.offset in lane.promotion.skip):
                    held = None  # promoted or struck meanwhile, or settled long ago
                self._go_on(lane, waiting, message_id, held)

        def unfound() -> None:
            waiting.asking = False
            waiting.unasked += ids

        if self._overflow.find(lane, ids, found, unfound):
            waiting.asking = True
            del waiting.unasked[: len(ids)]

    def _take_payloads(self, lane: SourcePartition, waiting: _Waiting) -> None:
        fetch, waiting.fetch = waiting.fetch, None
        assert fetch is not None
        items, waiting.fetching = waiting.fetching, []
        try:
            payloads = fetch.result()
        except SourceUnavailable as error:
            log.warning(
                "payloads of moved records are waited for",
                extra={"source_partition": str(lane.id), "problem": str(error)},
            )
            waiting.unfetched += items
            waiting.fetch_at_ms = self._now_ms + RETRY_MS
            return
        for item in items:
            record = payloads.get(item.held.came_at)
            if record is None:
                self._lose(lane, item)
            else:
                held = complete(item.held, record, split(headers_of(record)))
                if lane.quota is not None:
                    lane.quota.add(held)
                if not lane.redo(held):
                    self._holding.hold(lane, held)
            waiting.queues[item.id].popleft()
            self._go_on(lane, waiting, item.id, _ASK)

    def _lose(self, lane: SourcePartition, item: ReplayedMove) -> None:
        lane.lose(item.held.offset)
        self._tally.lost[lane.id.topic, "source"] += 1
        log.error(
            "a record that was moved is lost: the source's retention took its payload; raise retention.ms and "
            "retention.bytes of the topic",
            extra={"source_partition": str(lane.id), "offset": item.held.came_at},
        )


def _is_meant(item: Held | Control, here: Held | None) -> bool:
    """Whether this one in memory is meant for sure: the overflow may have another, with the offset that is named."""
    return here is not None and (isinstance(item, Held) or item.if_offset in (-1, here.offset))


def _replaces(item: Held, found: Held) -> bool:
    """Whether a record replaces the one found: same key, and no origin. Whoever copies the headers of a message onto
    several new ones copies its id, too: none of them may undo another.
    """
    return found.key == item.key and item.origin is None


def _last_before(item: Held | Control, *held: Any) -> Held | None:
    """The held record that `item` means: at the offset it names, else the last to come, or to be moved, before it."""
    before = [one for one in held if isinstance(one, Held) and one.offset < item.offset]
    named = item.if_offset if isinstance(item, Control) else -1
    return max(before, key=lambda one: (one.offset == named, one.offset), default=None)


def _id_of(item: Named) -> str:
    if isinstance(item, Control | ReplayedMove):
        return item.id
    message_id = held_id(item.held if isinstance(item, AwaitingTarget) else item)
    assert message_id is not None, "without an id nobody comes here"
    return message_id


def _apply(lane: SourcePartition, control: Control, related: int) -> None:
    """A control record has done what it could."""
    departure = Diverted(
        control.at_ms, control.offset, Outcome.APPLIED, "", "", None, None, [], control.policy, 0, control.id, related
    )
    lane.depart((departure,))
