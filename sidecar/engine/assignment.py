"""Partitions that this process has: recovered when assigned, settled when revoked, paused at a limit.

The consumer group calls `assigned`, `revoked` and `lost` on the engine's thread, from within `Intake.take`. A new
partition stays paused until its lane is recovered; all others go on meanwhile. A revoked one is settled and
committed before the call returns, so that its next owner starts where this one ended. When nobody knows how a
transaction ended (`Settlement.must_start_over`), all partitions are let go of, and recovered from what Kafka has:
`_start_over`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from sidecar.engine.commit.settlement import Settlement
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.partition.agenda import Agenda
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.recovery_reader import RecoveryJob, RecoveryWorker
from sidecar.engine.source_cuts import note_cut
from sidecar.engine.source_rights import SourceRights
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.ledger.topic import CommitsHidden, LedgerUnavailable
from sidecar.model.condition import SAMPLE_MS, Condition, Kind, Subject
from sidecar.model.ports import Intake, is_over
from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import OverflowUnavailable

log = logging.getLogger(__name__)

DRAIN_S: Final = 5.0  # how long a revoked partition's emissions are waited for
POLL_S: Final = 0.005
REVOKED_TOLD_MS: Final = 3 * SAMPLE_MS  # so long what left in order is told: a look or two may come late
REMIND_MS: Final = 60_000  # a recovery that goes on waiting says so again
RETRY_MS: Final = 500  # an overflow that is back is used again within a second
SWEEP_MS: Final = 30_000  # by then Kafka has ended every open transaction of tickover's: a third of it is their timeout


@dataclass(slots=True)
class Look:
    """A look at what a source's log has, under way."""

    future: Future[int | None]
    retry_at_ms: int = -1  # when nobody answered


class Assignment:
    """Owned by the engine's thread. `clock` gives epoch milliseconds: draining must know when to give up."""

    def __init__(
        self,
        intake: Intake,
        emitter: Emitter,
        settlement: Settlement,
        workers: tuple[OverflowWorker, RecoveryWorker],
        clock: Callable[[], int],
        counters: EngineCounters,
    ) -> None:
        self.lanes: dict[tuple[str | None, int | None], SourcePartition] = {}
        self.agenda = Agenda()  # of these
        self.joined = False
        self.not_taken_in = ""  # why the group refuses this process
        self.paused = False
        self.paused_sources: frozenset[str] = frozenset()  # topics of which nothing new is read
        self.rebalances = 0
        self.recovery_s = 0.0
        self.since_ms: dict[TopicPartition, int] = {}  # of each that is here: when it was assigned, or began to run
        self.revoked_ms: dict[TopicPartition, tuple[int, int]] = {}  # gone in order a while ago: since when, done when
        self._running: tuple[Condition, ...] | None = None
        self._swept_ms = 0
        self._intake = intake
        self._emitter = emitter
        self._settlement = settlement
        self._overflow, self._recovery = workers
        self._rights = SourceRights(self._recovery)
        self._clock = clock
        self._counters = counters
        self._waiting: set[TopicPartition] = set()  # assigned, their recovery not begun
        self._refused: frozenset[str] = frozenset()  # sources that may not be consumed
        self._turned_away: set[TopicPartition] = set()  # assigned since, of such a source
        self._jobs: list[RecoveryJob] = []
        self._out_of_range: dict[
            SourcePartition, Look | None
        ] = {}  # nothing is read of these for now; None: not looked at yet

    # --- the consumer group's events ------------------------------------------------------------------------------

    def assigned(self, lanes: Sequence[TopicPartition]) -> None:
        """New partitions, paused by the intake. Their recovery begins."""
        self.joined, self.not_taken_in = True, ""
        self.rebalances += 1
        log.info("partitions assigned", extra={"partitions": [str(lane) for lane in lanes]})
        self._turned_away.update(lane for lane in lanes if lane.topic in self._refused)
        self._await_recovery(lane for lane in lanes if lane.topic not in self._refused)

    def refuse(self, topics: frozenset[str]) -> None:
        """Begin no partition of these sources from now on; what is here of them goes on. Those of others begin."""
        self._refused = topics
        welcome = {lane for lane in self._turned_away if lane.topic not in topics}
        self._turned_away -= welcome
        self._await_recovery(welcome)

    def _await_recovery(self, lanes: Iterable[TopicPartition]) -> None:
        waiting = dict.fromkeys(lanes, self._clock())
        self.since_ms |= waiting
        for lane in waiting:
            self.revoked_ms.pop(lane, None)
        self._waiting |= waiting.keys()

    def revoked(self, lanes: Sequence[TopicPartition]) -> None:
        """Settle and commit what these partitions have in flight, then let go of them."""
        self.rebalances += 1
        began_ms = self._clock()
        leaving = self._take_out(lanes)
        if leaving:
            settled = self._drain(leaving)
            for lane in leaving:
                lane.uncommitted = True  # what the last interval committed, nobody has waited for
            self._settlement.commit(leaving, wait=settled)  # brokers that are away would be waited for in vain
        self._let_go(leaving)
        for lane_id in lanes:  # the group takes again, as the consumer is closed, what has left at a shutdown
            since_ms, _ = self.revoked_ms.pop(lane_id, (began_ms, 0))
            self.revoked_ms[lane_id] = since_ms, self._clock()  # behind all that were done before
        log.info("partitions revoked", extra={"partitions": [str(lane) for lane in lanes]})

    def lost(self, lanes: Sequence[TopicPartition]) -> None:
        """Another member has these partitions already: write nothing more about them."""
        self.joined = False
        self.rebalances += 1
        self._let_go(self._take_out(lanes))
        log.warning("partitions lost", extra={"partitions": [str(lane) for lane in lanes]})

    def refused(self, words: str) -> None:
        """The group doesn't take this process in: shown until it does."""
        self.not_taken_in = words

    def unreadable(self, topic: str, words: str) -> None:
        """Find out whether it is so, whichever answer comes first: the client may take the partitions of such a topic
        for gone, and says it once. A source of which nothing was read ends nobody: others go on.
        """
        if self._counters.accepted[topic]:
            self._rights.refused(topic, words, self._clock())
        else:
            log.warning("no right to read a source", extra={"topic": topic, "error": words})

    def committed(self, commits: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """A recovery would find this there: the overflow may be tidied up to the watermark, and have its numbers."""
        for lane_id, (offset, metadata) in commits.items():
            lane, state = self.lanes.get(lane_id), decode_metadata(offset, metadata)
            if lane is not None and state is not None and state.topic_id == lane.topic_id:
                lane.ledger.committed_watermark = max(lane.ledger.committed_watermark, state.watermark)
                lane.ledger.committed(state.acknowledged)

    def out_of_range(self, lane_id: TopicPartition) -> None:
        """The log of a lane that is read was cut back, it seems. What is held of it goes on meanwhile."""
        if (lane := self.lanes.get(lane_id)) is not None and lane not in self._out_of_range:
            self._intake.pause([lane_id])
            self._out_of_range[lane] = None  # records that were given out before are still to be accepted

    def leave(self) -> None:
        """Shutdown: settle and commit everything, and recover nothing more."""
        self.revoked(list(self.since_ms))

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Begin recoveries, take in lanes whose recovery has ended. What makes one impossible is raised."""
        self._forget_gone(now_ms)
        self._rights.step(now_ms)
        if self._settlement.must_start_over:
            self._start_over()
        if self._waiting and self._settlement.ready:
            self._jobs.append(self._recovery.submit(self._waiting, now_ms))
            self._waiting = set()
        for job in self._jobs:
            if job.lanes and job.future.done():
                self._take(job, now_ms)
        if self._jobs:
            self._jobs = [job for job in self._jobs if job.lanes]
        for lane, look in list(self._out_of_range.items()):
            if look is None:
                self._out_of_range[lane] = Look(self._recovery.look_at(lane))
            elif look.future.done():
                self._go_on(lane, look, now_ms)

    def _forget_gone(self, now_ms: int) -> None:
        """Let go of what was told for long enough: in time a process meets all partitions of its group."""
        told = takewhile(
            lambda gone: is_over(now_ms, gone[1][1] + REVOKED_TOLD_MS, REVOKED_TOLD_MS), self.revoked_ms.items()
        )
        for lane_id, _ in list(told):
            del self.revoked_ms[lane_id]

    def _go_on(self, lane: SourcePartition, look: Look, now_ms: int) -> None:
        """Read on where the log goes on."""
        if isinstance(look.future.exception(), LedgerUnavailable):
            if look.retry_at_ms < 0:
                look.retry_at_ms = now_ms + RETRY_MS
            elif is_over(now_ms, look.retry_at_ms, RETRY_MS):
                self._out_of_range[lane] = Look(self._recovery.look_at(lane))
            return
        if (log_offset := look.future.result()) is not None:
            note_cut(lane, log_offset)
        del self._out_of_range[lane]
        self._intake.begin({lane.id: lane.cuts.log_offset(lane.offsets.next)})
        self._resume([lane])

    def _take(self, job: RecoveryJob, now_ms: int) -> None:
        """Take in the result of a recovery: lanes, or why it has to wait."""
        error = job.future.exception()
        if isinstance(error, OverflowUnavailable | LedgerUnavailable):
            self._waits(job, str(error), now_ms)
            if isinstance(error, CommitsHidden):
                self._sweep(job, now_ms)
            return
        fresh = [lane for lane in job.future.result() if lane.id in job.lanes]
        job.lanes -= {lane.id for lane in fresh}
        if fresh:
            for lane in fresh:
                lane.intake_held = self.is_source_paused(lane)
                self.lanes[lane.id] = lane
                self.since_ms[lane.id] = now_ms
            self.agenda.add(fresh)
            self._running = None
            self.recovery_s = (now_ms - job.started_ms) / 1_000
            self._intake.begin({lane.id: lane.cuts.log_offset(lane.offsets.next) for lane in fresh})
            self._resume(fresh)
        if job.lanes and fresh:
            self._recovery.again(job, now_ms)  # those that had to be waited for
        elif job.lanes:
            self._waits(job, f"where {min(job.lanes)} begins isn't known yet", now_ms)

    def _waits(self, job: RecoveryJob, problem: str, now_ms: int) -> None:
        """Ledger, overflow or commits were away: what they have must be known before these partitions may go on."""
        if job.problem != problem or now_ms >= job.told_ms + REMIND_MS:
            job.problem, job.told_ms = problem, now_ms
            waited_s = (now_ms - job.started_ms) // 1_000
            about = {"partitions": len(job.lanes), "problem": problem, "waited_s": waited_s}
            log.warning("recovery waits", extra=about)
        if job.retry_at_ms < 0:
            job.retry_at_ms = now_ms + RETRY_MS
        elif is_over(now_ms, job.retry_at_ms, RETRY_MS):
            self._recovery.again(job, now_ms)

    def _sweep(self, job: RecoveryJob, now_ms: int) -> None:
        """End what may hide the commits: perhaps a transaction of this process's own that the brokers never end."""
        since_ms = max(job.started_ms, self._swept_ms)
        if not is_over(now_ms, since_ms + SWEEP_MS, SWEEP_MS) or not self._settlement.ready:
            return
        self._swept_ms = now_ms
        log.warning("where partitions begin stays unknown: ending what may hide the group's commits")
        self._settlement.sweep(self.lanes.values())

    @property
    def running(self) -> tuple[Condition, ...]:
        """Partitions that are served, and since when: made anew only when they change."""
        if self._running is None:
            since_ms = self.since_ms
            self._running = tuple(
                Condition(Subject(Kind.RUNNING, *lane.id), since_ms[lane.id]) for lane in self.lanes.values()
            )
        return self._running

    @property
    def recovering(self) -> int:
        """Number of partitions whose recovery is under way."""
        return len(self._waiting) + sum(len(job.lanes) for job in self._jobs)

    @property
    def is_awaiting(self) -> bool:
        """Recoveries, or looks at what a source's log has, are under way or about to begin."""
        return bool(self._waiting or self._jobs or self._out_of_range)

    @property
    def recovering_lanes(self) -> list[TopicPartition]:
        """Partitions whose recovery is under way."""
        return [*self._waiting, *(lane for job in self._jobs for lane in job.lanes)]

    @property
    def turned_away(self) -> int:
        """Number of partitions that don't begin since their source may not be consumed."""
        return len(self._turned_away)

    @property
    def problem(self) -> str:
        """Why a recovery waits; empty when none does."""
        return next((job.problem for job in self._jobs if job.lanes and job.problem), "")

    def _start_over(self) -> None:
        """Let go of all lanes and recover them from Kafka: what it has of our last transactions is unknown."""
        again = [lane.id for lane in self.lanes.values()]
        self._let_go(self._take_out(again))
        self._intake.pause(again)
        self._await_recovery(again)
        self._settlement.prepare()

    # --- back-pressure --------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Read nothing more for now."""
        if not self.paused:
            self.paused = True
            self._intake.pause([lane.id for lane in self.lanes.values()])

    def release(self) -> None:
        """Read on."""
        if self.paused:
            self.paused = False
            self._resume(self.lanes.values())

    def hold_back(self, lane: SourcePartition, wanted: bool) -> None:
        """Read nothing more of one lane for now, or read on."""
        if lane.intake_held != wanted:
            lane.intake_held = wanted
            if wanted:
                self._intake.pause([lane.id])
            else:
                self._resume([lane])

    def is_source_paused(self, lane: SourcePartition) -> bool:
        """Whether nothing new of this lane is to be read. What was read before a crash is read again: it is held."""
        return lane.id.topic in self.paused_sources and lane.offsets.next >= lane.recovered_until

    def _resume(self, lanes: Iterable[SourcePartition]) -> None:
        """Read on, unless something else is in the way."""
        if not self.paused:
            ready = [lane.id for lane in lanes if not lane.intake_held and lane not in self._out_of_range]
            self._intake.resume(ready)

    # --- letting go -----------------------------------------------------------------------------------------------

    def _take_out(self, lane_ids: Sequence[TopicPartition]) -> list[SourcePartition]:
        """Stop intake and firing of these lanes: what they hold in memory is read again by their next owner."""
        gone = set(lane_ids)
        self._waiting -= gone
        self._turned_away -= gone
        for lane_id in gone:
            self.since_ms.pop(lane_id, None)
        for job in self._jobs:
            job.lanes -= gone
        leaving = [self.lanes.pop(lane) for lane in lane_ids if lane in self.lanes]
        self.agenda.remove(leaving)
        self._running = None
        for lane in leaving:
            self._out_of_range.pop(lane, None)
        self._emitter.drop(set(leaving))
        for lane in leaving:
            lane.leaving = True
            lane.uncommitted = True
            lane.puts = []
            lane.touched = False
        return leaving

    def _drain(self, leaving: Sequence[SourcePartition]) -> bool:
        """Wait until what was emitted is in the ledger and what the ledger has is in the overflow; False: in vain."""
        time = self._settlement.time
        deadline_s = time.monotonic_s() + DRAIN_S
        while time.monotonic_s() < deadline_s and self._settlement.ready:
            now_ms = self._clock()
            if not self._settlement.hasten(quiet=True):
                self._settlement.poll(POLL_S)
            self._settlement.step([*self.agenda, *leaving], now_ms, self._emitter)
            self._overflow.apply(leaving, now_ms)
            applying = any(change.ready for lane in leaving if lane.loss is None for change in lane.changes)
            if not self._settlement.unfinished(leaving) and (not applying or self._overflow.problem):
                return True
        log.warning("gave up waiting for partitions to settle: some records may fire again")
        return False

    def _let_go(self, leaving: Sequence[SourcePartition]) -> None:
        for lane in leaving:
            lane.dropped = True
