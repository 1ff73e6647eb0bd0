"""The engine: consume -> decode -> decide -> hold -> due -> emit -> settle.

One thread owns everything here. Others reach it by three doors only: `table`, `pauses` and `switches` (immutable,
swapped whole), `submit` (a bounded mailbox of commands with futures), and `stats` (a frozen snapshot it publishes).
The methods stand in the order a record meets them. Time is an argument; the run loop at the end reads the clock.
`Rhythm` says when the settlement takes its steps, `Mailbox` is the door for commands.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from operator import methodcaller
from queue import Empty, Queue
from typing import Any, Final

from policies.table import PolicyTable
from sidecar.engine.assignment import Assignment
from sidecar.engine.commit.interval import EmissionApart
from sidecar.engine.commit.settlement import Settlement
from sidecar.engine.commit.transaction import PUSH_S
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.emitter import Arrived, Emitter
from sidecar.engine.intake.control_records import Actions
from sidecar.engine.intake.decide import Decider, Read, ReadyToHold
from sidecar.engine.intake.holding import Holding
from sidecar.engine.intake.key_order import Ordering
from sidecar.engine.intake.quotas import Quotas
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.snapshot import Publisher
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.model.condition import NO_PAUSES, NO_SWITCHES, PauseKind, Pauses, Switches, in_force
from sidecar.model.ports import Intake, SourceRecord, Time, mark_of
from sidecar.model.stats import Stats

QUIET: Final = 100  # records in a turn of the engine: with fewer, it has time to wait
BUSY_MS: Final = 10  # between two times that an engine waits that has none to spare
COMMANDS_MAX: Final = 1_000
COMMANDS_PER_TURN_MAX: Final = 16
EMIT_PER_TURN_MAX: Final = 1_000  # bounds a turn to a few milliseconds: the group, REST and the clock wait no longer
TURN_MS: Final = 3  # from turn to turn with little to do: one costs nearly as much with a record as with ten
AWAIT_MS: Final = 3  # while answers of other threads are awaited
LOOK_S: Final = 0.02  # so often who rests looks for commands and the end: nothing can wake a client that waits
REPORTS_S: Final = 0.005  # for so long who rests waits for delivery reports without a look at what else has come
CLIENT_MIN_S: Final = 0.001  # the client waits for whole milliseconds
PUBLISH_INTERVAL_MS: Final = 250  # there is always a turn then: what the engine can't foresee waits no longer
PRESS_INTERVAL_MS: Final = 50
PASS_INTERVAL_MS: Final = 2_000  # so often what holds no record, and no record follows, counts as read
PASS_LANES_MAX: Final = 50  # partitions in one turn that are looked at for that
OVERFLOW_PENDING_MAX: Final = 20_000  # records on their way to the overflow: above, intake pauses
OVERFLOW_PENDING_LANE_MAX: Final = 10_000  # of a lane whose overflow is being rebuilt: above, its own intake waits
RELEASE_SHARE: Final = 0.9  # intake goes on when the load is below this share of its limit
_topic_of: Final = methodcaller("topic")
_partition_of: Final = methodcaller("partition")
_offset_of: Final = methodcaller("offset")
Command = Callable[["Engine"], Any]

log = logging.getLogger(__name__)


class Rhythm:
    """Owned by the engine's thread."""

    def __init__(self, settlement: Settlement, apart: EmissionApart, interval_ms: int) -> None:
        self._settlement = settlement
        self._apart = apart
        self._interval_ms = interval_ms
        self._has_begun = False
        self._settled_ms = 0
        self._is_ahead = False  # the next step is prepared
        self._now_ms = 0
        self._hastened_ms = 0
        self._has_news = False  # something was done since the last step

    def step(self, lanes: Collection[SourcePartition], now_ms: int) -> None:
        """Let the settlement take its step, or prepare the next one, if it is time for that in this turn."""
        self._now_ms = now_ms
        rested_ms = now_ms - self._settled_ms
        begins = bool(lanes) and not self._has_begun  # with the block that shows the broker's clock: all wait for it
        if begins or rested_ms >= self._interval_ms or rested_ms < 0:
            if self._settlement.step(lanes, now_ms, self._apart):
                self._settled_ms = now_ms
                self._is_ahead = self._has_news = False
                self._has_begun = bool(lanes)
        elif not self._is_ahead and rested_ms >= self._interval_ms // 2:
            self._is_ahead = self._settlement.write_ahead(lanes, now_ms)

    def rest_ms(self, done: int, most_ms: int) -> int:
        """After a turn in which so much was done: how long no step is due, at most so long."""
        self._has_news = self._has_news or (done > 0 and self._settled_ms != self._now_ms)
        is_under_way = self._settlement.is_under_way
        if self._settlement.is_pressing:
            return 0
        if not (self._has_news or is_under_way):
            return most_ms
        is_ahead = self._is_ahead or not is_under_way  # with nothing emitted there is nothing to prepare
        due_ms = self._settled_ms + (self._interval_ms if is_ahead else self._interval_ms // 2)
        return max(min(due_ms - self._now_ms, most_ms), 0)

    @property
    def hides_until_step(self) -> bool:
        """A step is to come, and nobody sees sooner what is emitted until then."""
        return self._settlement.shows_at_step and (self._has_news or self._settlement.is_under_way)

    def hasten(self, done: int, most_s: float = PUSH_S) -> bool:
        """After a turn in which so much was done, for at most so long. True: some time was used."""
        quiet = done < QUIET
        if not quiet and 0 <= self._now_ms - self._hastened_ms < BUSY_MS:
            return False
        hastened = self._settlement.hasten(quiet, most_s)
        if hastened:
            self._hastened_ms = self._now_ms
        return hastened


class EngineError(Exception):
    """The engine can't go on. The process ends with status 1 and starts over; nothing is restarted in place."""


class Mailbox:
    """Bounded. `put` is for any thread, the rest for the engine's."""

    def __init__(self) -> None:
        self._commands: Queue[tuple[Callable[[Any], Any], Future[Any]]] = Queue(COMMANDS_MAX)

    def put(self, command: Callable[[Any], Any]) -> Future[Any]:
        """Leave a command. Raises queue.Full when too many wait."""
        future: Future[Any] = Future()
        self._commands.put_nowait((command, future))
        return future

    @property
    def is_empty(self) -> bool:
        """No command waits."""
        return self._commands.empty()

    def answer(self, engine: Any) -> None:
        """Do what some of the commands ask for.

        A future that its owner cancelled is skipped: a caller that went away can't harm the engine.
        """
        for _ in range(COMMANDS_PER_TURN_MAX):
            if self.is_empty:  # nearly always: an exception takes as long as all else in a turn without records
                return
            try:
                command, future = self._commands.get_nowait()
            except Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(command(engine))
            except Exception as error:  # noqa: BLE001 - the sender's command failed, not the engine: the sender hears of it
                future.set_exception(error)

    def refuse(self) -> None:
        """Nobody answers any more: who waits for an answer must not wait until its own time is up."""
        while True:
            try:
                _, future = self._commands.get_nowait()
            except Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError("the engine has ended"))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings that the engine's own code decides by: milliseconds, records, bytes."""

    settle_interval_ms: int
    intake_batch: int
    wheel_records_max: int
    wheel_bytes_max: int
    state_repeat_ms: int  # so often a partition without news writes block and commit, lest retention takes the last


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that the engine drives, each owned by the engine's thread alone."""

    intake: Intake
    emitter: Emitter
    settlement: Settlement
    decider: Decider
    holding: Holding
    overflow: OverflowWorker
    rebuild: RebuildWorker
    actions: Actions
    ordering: Ordering
    quotas: Quotas
    assignment: Assignment
    publisher: Publisher
    tally: EngineCounters


class Engine:
    """See the module."""

    def __init__(self, settings: EngineSettings, parts: Parts, table: PolicyTable) -> None:
        self.table = table
        self.pauses: Pauses = NO_PAUSES
        self.switches: Switches = NO_SWITCHES
        self.stats = Stats()
        self.failure: BaseException | None = None
        self.finished = threading.Event()
        self._settings = settings
        self._parts = parts
        self._decider = parts.decider
        self._lanes = parts.assignment.lanes
        self._agenda = parts.assignment.agenda
        self._rhythm = Rhythm(parts.settlement, parts.emitter, settings.settle_interval_ms)
        self._mailbox = Mailbox()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._knows_time = False
        self._now_ms = 0
        self._pressed_ms = 0
        self._passed_ms = 0
        self._to_pass: list[SourcePartition] = []
        self._followed: PolicyTable | None = None  # the table that all partitions were looked at by
        self._published_ms = 0
        parts.assignment.pause()  # until the time is known

    # --- one turn -------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> int:
        """One round of the journey; returns how much was done, 0 when there was nothing to do."""
        parts, self._now_ms = self._parts, now_ms
        self._mailbox.answer(self)
        records = parts.intake.take(self._settings.intake_batch)
        if records:
            self._accept(records, now_ms)
        parts.assignment.step(now_ms)
        emitted = self._hold_and_emit(now_ms) if self._knows_time else 0
        parts.settlement.poll(0)
        self._rhythm.step(self._agenda, now_ms)
        self._begin()
        if now_ms - self._pressed_ms >= PRESS_INTERVAL_MS or now_ms < self._pressed_ms:
            self._pressed_ms = now_ms
            parts.emitter.gate.follow(self.table, self._agenda.topics, now_ms)
            self._pause(now_ms)
            self._press()
        if now_ms - self._passed_ms >= PASS_INTERVAL_MS or now_ms < self._passed_ms:
            self._passed_ms = now_ms
            self._to_pass = self._to_pass or self._agenda.lanes  # all have their turn, before one has another
        if self._to_pass:
            self._pass_marks()
        if now_ms - self._published_ms >= PUBLISH_INTERVAL_MS or now_ms < self._published_ms:
            self._published_ms = now_ms
            self.stats = parts.publisher.publish(now_ms)
        return len(records) + emitted

    def _begin(self) -> None:
        """Read, promote and emit nothing before the broker's clock was seen: this machine's may be hours ahead."""
        if not self._knows_time and self._parts.settlement.time.is_known:
            self._knows_time = True
            self._pressed_ms = 0  # intake begins in this turn

    def _hold_and_emit(self, now_ms: int) -> int:
        parts, lanes, table = self._parts, self._agenda, self.table
        if table is not self._followed:
            self._followed = table
            lanes.stir_all()
        for ready in parts.ordering.step(lanes, table, now_ms):
            self._hold(ready)
        parts.quotas.step(lanes, table, now_ms)
        records_held, bytes_held = self._in_memory()
        room = self._settings.wheel_records_max // 2 - records_held
        parts.overflow.step(lanes, now_ms, room if bytes_held < self._settings.wheel_bytes_max // 2 else 0)
        parts.rebuild.step(lanes, now_ms)
        parts.actions.step(now_ms)
        for lane in lanes.due(now_ms):
            parts.emitter.fire(lane, now_ms)
        emitted = self._emit(now_ms)
        lanes.settle_down()  # all have been looked at
        return emitted

    def _emit(self, now_ms: int) -> int:
        """Emit, and hold what has found its target, which may let others of its id go: they go in the same turn."""
        budget = EMIT_PER_TURN_MAX
        while budget > 0:
            emitted = self._parts.emitter.emit(now_ms, budget)
            budget -= emitted.number
            for arrived in emitted.arrived:
                self._hold_arrived(arrived)
            if not emitted.arrived:
                break
        return EMIT_PER_TURN_MAX - budget

    # --- consume, decode, decide, hold ----------------------------------------------------------------------------

    def _accept(self, records: Sequence[SourceRecord], now_ms: int) -> None:
        """Records come in runs of one partition: what depends on the lane is looked up once a run."""
        places = zip(map(_topic_of, records), map(_partition_of, records), strict=True)
        start = 0
        for place, same in groupby(places):
            stop = start + len(list(same))
            lane = self._lanes.get(place)
            if lane is not None:
                self._accept_run(lane, records[start:stop], now_ms)
            start = stop

    def _accept_run(self, lane: SourcePartition, run: Sequence[SourceRecord], now_ms: int) -> None:
        offsets = list(map(_offset_of, run))
        lane.note_read(mark_of(run[-1]))
        if lane.cuts:
            offsets = list(map(lane.cuts.lane_offset, offsets))
        near_ms = self._parts.overflow.near_ms(lane, now_ms)
        lane.touch()
        if not lane.offsets.append_run(offsets):
            self._accept_with_gaps(lane, run, offsets, now_ms, near_ms)
        else:
            self._hold_run(lane, run, offsets, now_ms, near_ms)
        if self._parts.assignment.is_source_paused(lane):
            self._parts.assignment.hold_back(lane, True)  # all that was held is read again

    def _accept_with_gaps(
        self, lane: SourcePartition, run: Sequence[SourceRecord], offsets: Sequence[int], now_ms: int, near_ms: int
    ) -> None:
        """Take in a run with offsets that were read before, or that the source doesn't have."""
        first = 0
        fresh: list[int] = []
        for place, offset in enumerate(offsets):
            if offset > lane.offsets.next or first + len(fresh) < place:
                # A gap gives up what lies below it: that must be decided before.
                self._hold_run(lane, run[first : first + len(fresh)], fresh, now_ms, near_ms)
                first, fresh = place, []
            if lane.accept(offset):
                fresh.append(offset)
        self._hold_run(lane, run[first : first + len(fresh)], fresh, now_ms, near_ms)
        if lane.vanished:
            self._lose(lane)

    def _pass_marks(self) -> None:
        """The mark at a transaction's end is an offset without a record: where none follows it, it would be lag.

        Nobody says that there is one: some partitions are asked about in each turn, until all were.
        """
        lanes, self._to_pass = self._to_pass[:PASS_LANES_MAX], self._to_pass[PASS_LANES_MAX:]
        here = [lane for lane in lanes if not lane.leaving]
        idle = {lane.id: lane for lane in here if lane.offsets.low >= lane.offsets.next}
        for place, offset in self._parts.intake.positions(list(idle)).items():
            lane = idle[place]
            lane.read_up_to(lane.cuts.lane_offset(offset))
            if lane.vanished:
                self._lose(lane)

    def _lose(self, lane: SourcePartition) -> None:
        """The ledger says that these were held, and the source has them no more: it did not wait for Redis."""
        vanished, lane.vanished = lane.vanished, []
        self._parts.tally.lost[lane.id.topic, "source"] += len(vanished)
        log.error(
            "records that were held are lost: their source lost them before Redis had them; raise its retention.ms and "
            "retention.bytes, and set cleanup.policy=delete",
            extra={"source_partition": str(lane.id), "count": len(vanished), "first_offset": vanished[0]},
        )

    def _hold_run(
        self, lane: SourcePartition, run: Sequence[SourceRecord], offsets: Sequence[int], now_ms: int, near_ms: int
    ) -> None:
        """Decide and hold records that were not read before."""
        if not offsets:
            return
        if self.table.orders or lane.order is not None:
            self._parts.ordering.watch(lane, self.table)
        self._parts.quotas.watch(lane, self.table)
        read = Read(*self._decider.decide_run(lane, run, offsets, self.table, now_ms))
        if lane.quota is not None:
            read = self._parts.quotas.admit(lane, read)
        lane.accepted += len(run)
        self._parts.tally.accepted[lane.id.topic] += len(run)
        ready = (
            ReadyToHold(lane, read, near_ms)
            if lane.order is None
            else self._parts.ordering.take(lane, read, self._now_ms)
        )
        if ready is not None:
            self._hold(ready)

    def _hold(self, ready: ReadyToHold) -> None:
        """Hold records that need not wait; those that are not to be held go their ways."""
        lane, (held, others, named), near_ms = ready
        self._parts.holding.hold_all(lane, held, near_ms)
        for parcel in others:
            self._parts.emitter.leave(lane, parcel)
        if named:
            self._parts.actions.take(lane, named, self._now_ms)

    def _hold_arrived(self, arrived: Arrived) -> None:
        """Hold a record whose target had to be asked for. Where there is no such target, it has left."""
        lane, held, may_be_held = arrived
        self._parts.overflow.keep_up(lane, self._now_ms)
        if not may_be_held:
            self._parts.ordering.gone(lane, held)
            self._parts.actions.turned_away(lane, held)
        elif not self._parts.actions.arrived(lane, held):
            self._parts.holding.hold(lane, held)

    # --- back-pressure --------------------------------------------------------------------------------------------

    def _pause(self, now_ms: int) -> None:
        """Keep up with what is paused, and with breakers switched by hand, before any record is read or emitted."""
        emitter, assignment = self._parts.emitter, self._parts.assignment
        emitter.pause(in_force(self.pauses, now_ms), now_ms)
        emitter.gate.switch_breakers(self.switches, now_ms)
        sources = emitter.pauses.names(PauseKind.SOURCE)
        if sources != assignment.paused_sources:
            assignment.paused_sources = sources
            self._agenda.stir_all()  # each is looked at, as are those whose intake waits until it waits no more

    def _press(self) -> None:
        """Pause intake at a limit, resume it well below: what isn't read is safe in Kafka."""
        settings, parts = self._settings, self._parts
        records_held, bytes_held = self._in_memory()
        pending = 0
        for lane in self._agenda:
            if lane.vanished:  # as its recovery found
                self._lose(lane)
            waiting = lane.on_the_way
            # A lane that is being rebuilt waits alone: its puts can't go, and the other lanes' can.
            lost = lane.loss is not None and waiting >= OVERFLOW_PENDING_LANE_MAX
            if (crowded := lane.crowded_by_runs) and not lane.intake_held:
                extra = {"source_partition": str(lane.id), "offset": lane.offsets.low, "changes": len(lane.runs)}
                log.warning("intake waits: policies have changed too often while a record stays open", extra=extra)
            waits = lost or parts.ordering.waits(lane) or crowded or parts.assignment.is_source_paused(lane)
            parts.assignment.hold_back(lane, waits)
            pending += waiting if lane.loss is None else 0
            pending += len(lane.order.queue) if lane.order is not None else 0
        pending += parts.actions.count
        share = max(
            records_held / settings.wheel_records_max,
            bytes_held / settings.wheel_bytes_max,
            pending / OVERFLOW_PENDING_MAX,
        )
        if share >= 1.0:
            self._parts.assignment.pause()
        elif share < RELEASE_SHARE and self._knows_time:
            self._parts.assignment.release()

    def _in_memory(self) -> tuple[int, int]:
        """Records and bytes in the wheels, and of those that have left them and aren't emitted for good."""
        load, returned, settlement = self._parts.emitter.load, self._parts.emitter.redelivery, self._parts.settlement
        records, size = settlement.unwritten
        for interval in settlement.in_flight:
            records += interval.sent
            size += interval.bytes
        return records + load.records + returned.count, size + load.bytes + returned.bytes

    # --- mailbox --------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> Future[Any]:
        """Run `command(engine)` on the engine's thread. Raises queue.Full when too many wait."""
        future = self._mailbox.put(command)
        if self.finished.is_set():
            self._mailbox.refuse()
        return future

    def refuse(self, topics: frozenset[str]) -> None:
        """Begin no more partitions of these sources, and those of all others: a command for `submit`."""
        self._parts.assignment.refuse(topics)

    def tidy(self) -> None:
        """Clean the overflow up behind watermarks, and repeat what the ledger would forget: a command for `submit`."""
        self._parts.overflow.ask_to_tidy(self._lanes.values())
        for lane in self._lanes.values():
            lane.repeat_state(self._now_ms, self._settings.state_repeat_ms)

    def retire(self, topics: frozenset[str]) -> None:
        """See `Decider.retire`: a command for `submit`."""
        self._decider.retire(topics)

    def forget_topics(self, gone: frozenset[str]) -> None:
        """Publish nothing more of topics that were deleted, as sources or as targets: a command for `submit`.

        What still has a lane or waiting records goes on.
        """
        self._parts.tally.forget(gone.difference(topic for topic, _ in self._lanes if topic is not None))
        self._parts.emitter.gate.forget(gone)

    def doubt_source(self, topic: str, words: str) -> None:
        """Find out whether a source may still be read, of which the brokers say so: a command for `submit`."""
        self._parts.assignment.unreadable(topic, words)

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, time: Time, pace: Callable[[float], None]) -> None:
        """Begin turning on a thread of its own; `pace` sleeps for seconds."""
        self._thread = threading.Thread(target=self._run, args=(time, pace), name="engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop intake, settle what is in flight, commit, leave the group. Twice is harmless."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, time: Time, pace: Callable[[float], None]) -> None:
        busy = min(QUIET, self._settings.intake_batch)  # with so many in a turn, more may wait
        try:
            while not self._stopping.is_set():
                began_s, now_ms = time.monotonic_s(), time.now_ms()
                done = self.turn(now_ms)
                if done >= busy:
                    self._rhythm.hasten(done)
                else:
                    rest_s = max(self.rest_ms(now_ms, done), TURN_MS) / 1_000
                    soonest_s = rest_s if self._rhythm.hides_until_step else TURN_MS / 1_000
                    self._rest(done, (began_s + soonest_s, began_s + rest_s), time, pace)
            self._parts.assignment.leave()
            self.stats = self._parts.publisher.publish(time.now_ms())  # that it stops is told before the group knows
            self._parts.intake.close()
        except BaseException as error:
            self.failure = error
            log.critical("the engine failed", exc_info=error)
        finally:
            self.finished.set()
            self._mailbox.refuse()

    # --- rest between two turns -----------------------------------------------------------------------------------

    def rest_ms(self, now_ms: int, done: int) -> int:
        """How long from a turn at this time on, in which so much was done, the next one has nothing to do unless
        something comes: a record, an event of the group, a command. Until a step that nobody can see past, what falls
        due and comes waits for its turn: of a few records, one costs nearly as much as all.
        """
        most_ms = AWAIT_MS if not self._knows_time or self._is_awaiting() else PUBLISH_INTERVAL_MS
        publish_ms = self._published_ms + PUBLISH_INTERVAL_MS - now_ms
        rest_ms = self._rhythm.rest_ms(done, max(min(publish_ms, most_ms), 0))
        return rest_ms if self._rhythm.hides_until_step else self._agenda.due_within(now_ms, rest_ms)

    def _is_awaiting(self) -> bool:
        """Other threads are to answer, whose answers wake nobody; or records wait until there is room for them."""
        parts = self._parts
        return (
            parts.overflow.is_awaiting
            or parts.rebuild.is_awaiting
            or parts.assignment.is_awaiting
            or parts.assignment.paused
            or parts.actions.count > 0
            or any(map(parts.ordering.waits, self._agenda))
            or parts.ordering.is_scanning
            or parts.quotas.is_scanning
            or parts.emitter.backlog > 0
        )

    def _rest(self, done: int, span_s: tuple[float, float], time: Time, pace: Callable[[float], None]) -> None:
        """Wait until the end of the span; once a record has come only until its first moment. Monotonic seconds."""
        soonest_s, until_s = span_s
        while not self._stopping.is_set() and self._mailbox.is_empty:
            left_s = min(until_s - time.monotonic_s(), LOOK_S)
            if left_s <= 0:
                break
            if left_s < CLIENT_MIN_S:  # waiting for reports would be a busy loop, too
                pace(left_s)
                continue
            hastened = self._rhythm.hasten(done, min(left_s, REPORTS_S))  # which has taken its time
            if until_s == soonest_s:
                if not hastened:
                    pace(left_s)
            elif self._parts.intake.wait(0 if hastened else left_s):
                until_s = soonest_s
