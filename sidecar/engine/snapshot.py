"""Making `Stats` of what the engine's parts know."""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from sidecar.engine.assignment import Assignment
from sidecar.engine.conditions import Waits, conditions_of
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.intake.quotas import uses_of
from sidecar.engine.partition.change_block import Loss
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import NOWHERE
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.model.condition import Condition, Kind, Subject
from sidecar.model.ports import Time
from sidecar.model.record import Outcome
from sidecar.model.stats import QuotaUse, RebuildProgress, Stats


class Share(NamedTuple):
    """Part of one partition in the figures of its topic."""

    wheel: int
    overflow: int
    parked: int
    far: int  # in the overflow, and not in the wheel


class Holdings:
    """Records that the partitions hold, by topic, counted anew only for those that have changed."""

    def __init__(self) -> None:
        self.shares: dict[SourcePartition, Share] = {}
        self.wheel: Counter[str] = Counter()
        self.overflow: Counter[str] = Counter()
        self.parked: Counter[str] = Counter()
        self._with_parked: dict[SourcePartition, None] = {}  # what is parked there becomes less as time passes

    def step(self, changed: Iterable[SourcePartition], now_ms: int) -> None:
        """Count these anew, and those where time alone changes something."""
        for lane in dict.fromkeys((*self._with_parked, *changed)):
            if lane.order is not None:
                lane.order.pass_time(now_ms)
            if lane.leaving or lane.dropped:
                self._add(lane.id.topic, self.shares.pop(lane, _NOTHING), -1)
                self._with_parked.pop(lane, None)
                continue
            share = share_of(lane)
            self._add(lane.id.topic, self.shares.get(lane, _NOTHING), -1)
            self._add(lane.id.topic, share, 1)
            self.shares[lane] = share
            if share.parked:
                self._with_parked[lane] = None
            else:
                self._with_parked.pop(lane, None)

    def _add(self, topic: str, share: Share, sign: int) -> None:
        self.wheel[topic] += sign * share.wheel
        self.overflow[topic] += sign * share.overflow
        self.parked[topic] += sign * share.parked

    def forget(self, topics: Iterable[str]) -> None:
        """There is no partition of these any more."""
        for topic in list(topics):
            del self.wheel[topic], self.overflow[topic], self.parked[topic]


_NOTHING = Share(0, 0, 0, 0)


def share_of(lane: SourcePartition) -> Share:
    """Part of a partition as of now."""
    far = lane.overflow_held - lane.promotion.unsettled
    return Share(lane.wheel.count, far + lane.on_the_way, lane.order.parked if lane.order is not None else 0, far)


def progress_of(lane: SourcePartition, loss: Loss) -> RebuildProgress:
    """How far the rebuild of a lane has come. The ledger may have grown since its end was asked for."""
    if loss.ledger_read < 0:
        return RebuildProgress(*lane.id, 0, lane.overflow_held, loss.problem)
    read_share = min(loss.ledger_read / max(loss.ledger_total, 1), 1.0)
    return RebuildProgress(*lane.id, loss.records_done, loss.records_total, loss.problem, read_share)


class Publisher:
    """Builds a snapshot of the counters a few times a second; `survey` adds what needs a look at every bucket."""

    def __init__(
        self,
        replica: str,
        tally: EngineCounters,
        emitter: Emitter,
        assignment: Assignment,
        overflow: OverflowWorker,
        time: Time,
    ) -> None:
        self.kafka_problem = ""  # set by the clients' error callbacks
        self.warnings: tuple[str, ...] = ()  # set by housekeeping
        self.lacks: tuple[str, ...] = ()  # what the brokers don't have; set by housekeeping
        self._redis_problem = ""
        self._time = time
        self._replica = replica
        self._tally = tally
        self._emitter = emitter
        self._assignment = assignment
        self._overflow = overflow
        self._waits = Waits()
        self._held = Holdings()
        self._quotas: Mapping[str, QuotaUse] = MappingProxyType({})
        self._suspended_ms: dict[str, int] = {}  # targets that don't acknowledge, and since when; replaced, not changed
        self.near_due_ms = -1  # when the next record in a wheel is due
        self.far_due_ms = -1  # and, while no wheel has any, the next of all; set by housekeeping
        self.held_for_ms: Mapping[str, int] = {}  # by topic: how long from now what the overflow has may be held
        self._imbalance = 0

    def note_redis(self, problem: str) -> None:
        """Note what is wrong with the Redis server, "" when nothing is. Called by housekeeping."""
        self._redis_problem = problem

    def survey(self) -> int:
        """Count again what is held and when it is next due; returns the imbalance. Called by housekeeping, by mail."""
        lanes = self._assignment.lanes.values()
        dues = [due for lane in lanes if (due := lane.wheel.next_due_ms()) >= 0]
        self.near_due_ms = min(dues, default=-1)
        now_ms = self._time.now_ms()
        held_for_ms: dict[str, int] = {}
        for lane in lanes:
            if lane.overflow_held and lane.ledger.rebuilds:  # the last one is due last
                topic, until_ms = lane.id.topic, lane.ledger.rebuilds[-1][1]
                held_for_ms[topic] = max(until_ms - now_ms, held_for_ms.get(topic, 0))
        self.held_for_ms = held_for_ms
        recount = sum(lane.wheel.count - lane.wheel.recount() for lane in lanes)
        self._imbalance = sum(lane.imbalance for lane in lanes) + recount
        return self._imbalance

    def publish(self, now_ms: int) -> Stats:
        """The snapshot as of now."""
        lanes, held = self._assignment.lanes, self._follow(now_ms)
        gate, tally = self._emitter.gate, self._tally
        wheel, overflow, parked = Counter(held.wheel), held.overflow, held.parked
        wheel.update(self._emitter.pauses.by_topic())
        wheel.update(gate.by_topic())  # not `+=`: that would drop the topics of which nothing is held
        topics = sorted({*wheel, *tally.accepted, *(topic for topic, _ in tally.outcomes)})
        gate.pass_time(now_ms)
        oldest_ms = self._emitter.oldest_due_ms()
        suspended = self._emitter.redelivery.suspended(now_ms)
        self._suspended_ms = {topic: self._suspended_ms.get(topic, now_ms) for topic in suspended}
        kafka_problem = self.kafka_problem or self._emitter.problem or self._emitter.settlement.problem
        return Stats(
            replica=self._replica,
            turned_monotonic_s=self._time.monotonic_s(),
            topics=MappingProxyType(
                {topic: tally.topic_counts(topic, wheel[topic], overflow[topic], parked[topic]) for topic in topics}
            ),
            dead_reasons=MappingProxyType(tally.by_reason(Outcome.DEAD)),
            quarantine_reasons=MappingProxyType(tally.by_reason(Outcome.QUARANTINED)),
            targets=MappingProxyType(gate.flows()),
            suspended=tuple(self._suspended_ms),
            suspended_since_ms=MappingProxyType(self._suspended_ms),
            paused=MappingProxyType(self._emitter.pauses.waiting()),
            quotas=self._quotas,
            lateness=tally.lateness(),
            early=tally.early,
            oldest_overdue_ms=max(now_ms - min(self._unseen_ms(now_ms), oldest_ms if oldest_ms >= 0 else now_ms), 0),
            next_due_ms=self.near_due_ms if self.near_due_ms >= 0 else self.far_due_ms,
            partitions_assigned=len(lanes),
            partitions_recovering=self._assignment.recovering,
            partitions_paused=len(lanes) if self._assignment.paused else 0,
            rebalances=self._assignment.rebalances,
            recovery_s=self._assignment.recovery_s,
            rebuilding=tuple(
                progress_of(lane, loss) for lane in self._assignment.agenda if (loss := lane.loss) is not None
            ),
            rebuilds=tally.rebuilds,
            rebuilt=MappingProxyType(dict(tally.rebuilt)),
            lost=MappingProxyType(dict(tally.lost)),
            ledger_imbalance=self._imbalance,
            clock_skew_ms=round(self._time.skew_ahead_ms),
            kafka_problem=kafka_problem,
            overflow_problem=self._overflow.problem or self._assignment.problem or self._redis_problem,
            warnings=self._warnings(),
            joined=self._assignment.joined,
            not_taken_in=self._assignment.not_taken_in,
            at_ms=now_ms,
            conditions=(
                *conditions_of(self._assignment, self._emitter, self._waits, now_ms),
                *((Condition(Subject(Kind.KAFKA)),) if kafka_problem else ()),
                *((Condition(Subject(Kind.REDIS)),) if self._overflow.problem else ()),
            ),
        )

    def _follow(self, now_ms: int) -> Holdings:
        """Count what the partitions hold, of which only some have changed."""
        held, agenda = self._held, self._assignment.agenda
        changed = agenda.take_changed()
        held.step(changed, now_ms)
        held.forget(held.wheel.keys() - agenda.topics.keys())
        if any(lane.quota is not None for lane in changed) or (changed and self._quotas):
            self._quotas = MappingProxyType(uses_of(held.shares))
        return held

    def _unseen_ms(self, now_ms: int) -> int:
        """Since when something that the overflow has may be due: a Redis that is away doesn't say."""
        if self._overflow.read_until_ms >= now_ms:
            return now_ms
        cursors = [lane.promotion.cursor for lane, share in self._held.shares.items() if share.far]
        return min([now_ms, *(cursor.due_ms for cursor in cursors if cursor > NOWHERE)])

    def _warnings(self) -> tuple[str, ...]:
        waiting = self._assignment.turned_away
        told = (*self.warnings, *self.lacks)
        return (*told, f"{waiting} partitions of compacted sources wait") if waiting else told
