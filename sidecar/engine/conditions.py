"""Conditions that keep records waiting, as the engine's parts know them at a snapshot.

Nothing here costs anything for a record: it is asked a few times a second, by partition and by target.
"""

from collections.abc import Collection, Iterator

from sidecar.engine.assignment import Assignment
from sidecar.engine.emission.emitter import Emitter
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.condition import WAIT_MIN_MS, Condition, Kind, Subject


def conditions_of(assignment: Assignment, emitter: Emitter, now_ms: int) -> Iterator[Condition]:
    """Conditions of partitions and targets, and of the process as far as assignment and emitter know them."""
    lanes = assignment.lanes.values()
    for lane in lanes:
        yield Condition(Subject(Kind.RUNNING, *lane.id), assignment.since_ms[lane.id])
    for lane_id in assignment.recovering_lanes:
        yield Condition(Subject(Kind.RECOVERING, *lane_id), assignment.since_ms[lane_id])
    yield from _of_partitions(lanes, now_ms)
    for wait in emitter.gate.waits():
        if now_ms - wait.due_ms >= WAIT_MIN_MS:
            yield Condition(Subject(Kind.BREAKER if wait.for_breaker else Kind.RATE, wait.target), wait.due_ms)
    for target in emitter.redelivery.suspended(now_ms):
        yield Condition(Subject(Kind.SUSPENDED, target))
    handed_over_ms = min((one.batches[0][2] for one in emitter.settlement.in_flight if one.batches), default=now_ms)
    if now_ms - handed_over_ms >= WAIT_MIN_MS:
        yield Condition(Subject(Kind.SETTLE), handed_over_ms)
    if assignment.paused and lanes:
        yield Condition(Subject(Kind.PAUSED))


def _of_partitions(lanes: Collection[SourcePartition], now_ms: int) -> Iterator[Condition]:
    for lane in lanes:
        if lane.loss is not None:
            yield Condition(Subject(Kind.REBUILD, *lane.id))
        if lane.order is not None and lane.order.fired_waiting:
            due_ms = lane.order.oldest_due_ms()
            if now_ms - due_ms >= WAIT_MIN_MS:
                yield Condition(Subject(Kind.ORDER, *lane.id), due_ms)
