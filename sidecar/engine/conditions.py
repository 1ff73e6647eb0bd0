"""Conditions that keep records waiting, as the engine's parts know them at a snapshot.

Nothing here costs anything for a record: it is asked a few times a second, by partition and by target.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sidecar.engine.assignment import Assignment
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.emission.rate_limit import RateLimiter
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.condition import WAIT_MIN_MS, Condition, Kind, PauseKind, Subject

PAUSED: Final = {
    PauseKind.TARGET: Kind.TARGET_PAUSED,
    PauseKind.POLICY: Kind.POLICY_PAUSED,
    PauseKind.SOURCE: Kind.SOURCE_PAUSED,
}


class Waits:
    """Since when something waits, by target and by partition: remembered from snapshot to snapshot while it does.

    The due time of the first record alone doesn't say: it may have been overdue when it came.
    """

    def __init__(self) -> None:
        self._begun_ms: dict[Subject, int] = {}

    def step(self, waiting: Iterable[tuple[Subject, int]], now_ms: int) -> list[Condition]:
        """Conditions of what has waited for `WAIT_MIN_MS`. `waiting`: all that waits, and the earliest due time, epoch
        ms; what isn't among it is forgotten.
        """
        dues_ms = dict(waiting)
        self._begun_ms = {subject: min(self._begun_ms.get(subject, now_ms), now_ms) for subject in dues_ms}
        since_ms = {subject: max(due_ms, self._begun_ms[subject]) for subject, due_ms in dues_ms.items()}
        return [Condition(*one) for one in since_ms.items() if now_ms - one[1] >= WAIT_MIN_MS]


def conditions_of(assignment: Assignment, emitter: Emitter, waits: Waits, now_ms: int) -> tuple[Condition, ...]:
    """Conditions of partitions and targets, and of the process as far as assignment and emitter know them."""
    begins = emitter.settlement.time.is_known  # nothing is read or emitted before the broker's clock was seen
    running = assignment.running if begins else ()
    return (*running, *_others(assignment, emitter, waits, now_ms))


def _others(assignment: Assignment, emitter: Emitter, waits: Waits, now_ms: int) -> Iterator[Condition]:
    begins = emitter.settlement.time.is_known
    waiting = () if begins else tuple(lane.id for lane in assignment.lanes.values())
    for lane_id in (*waiting, *assignment.recovering_lanes):
        yield Condition(Subject(Kind.RECOVERING, *lane_id), assignment.since_ms[lane_id])
    for lane_id, (since_ms, _) in assignment.revoked_ms.items():
        yield Condition(Subject(Kind.REVOKED, *lane_id), since_ms)
    for lane in assignment.agenda:
        if lane.loss is not None:
            yield Condition(Subject(Kind.REBUILD, *lane.id))
    yield from waits.step((*_at_gate(emitter.gate), *_behind_others(emitter.in_order.lanes)), now_ms)
    for paused, since_ms in emitter.pauses.since_ms.items():
        if (kind := PAUSED.get(paused.kind)) is not None:
            yield Condition(Subject(kind, paused.name), since_ms)
    for target in emitter.redelivery.suspended(now_ms):
        yield Condition(Subject(Kind.SUSPENDED, target))
    handed_over_ms = min((one.batches[0][2] for one in emitter.settlement.in_flight if one.batches), default=now_ms)
    if now_ms - handed_over_ms >= WAIT_MIN_MS:
        yield Condition(Subject(Kind.SETTLE), handed_over_ms)
    if assignment.paused and assignment.lanes and begins:
        yield Condition(Subject(Kind.PAUSED))


def _at_gate(gate: RateLimiter) -> Iterator[tuple[Subject, int]]:
    """Targets for which something waits, and since when it is due."""
    for wait in gate.waits():
        yield Subject(Kind.BREAKER if wait.for_breaker else Kind.RATE, wait.target), wait.due_ms


def _behind_others(lanes: Iterable[SourcePartition]) -> Iterator[tuple[Subject, int]]:
    """Partitions where something waits behind others of its key, and since when it is due."""
    for lane in lanes:
        if lane.order is not None and lane.order.fired_waiting:
            yield Subject(Kind.ORDER, *lane.id), lane.order.oldest_due_ms()
