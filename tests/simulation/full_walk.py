"""Notes of the engine about its partitions, beside a look at all of them."""

from collections import Counter

from sidecar.engine.snapshot import share_of
from sidecar.model.record import due_of
from tests.simulation.replica import Replica


def check_agenda(replica: Replica) -> None:
    """After a turn: nobody with work is missed, and nobody fires too late."""
    agenda, lanes = replica.assignment.agenda, replica.lanes
    assert agenda.lanes == lanes
    assert agenda.topics == Counter(lane.id.topic for lane in lanes)
    for lane in lanes:
        assert lane in agenda or lane.is_quiet, f"{lane.id} has work and nobody looks at it"
        due_ms = lane.wheel.next_due_ms()
        assert due_ms < 0 or agenda.expected_ms(lane) <= due_ms, f"{lane.id} fires at {due_ms}, and nobody looks then"
        assert agenda.next_due_ms <= agenda.expected_ms(lane)
        if lane.overflow_used and lane not in agenda:
            assert lane in replica.worker.used, f"{lane.id} has something in the overflow and is not promoted"


def check_wheels(replica: Replica) -> None:
    """Nothing in a wheel waits longer than until it is due, whatever was done to the clock since it came there."""
    now_ms = replica.told_ms
    for lane in replica.lanes if replica.settlement.time.is_known else ():
        wheel = lane.wheel
        soonest_ms = min(map(due_of, wheel.records()), default=-1)
        assert wheel.next_due_ms() <= max(soonest_ms, now_ms) + wheel.tick_ms, f"{lane.id}: {soonest_ms} waits on"


def check_published(replica: Replica) -> None:
    """Figures that are published are of what there is. It costs as much as a turn; a wrong one stays for a while."""
    counts = {topic: Counter[str]() for topic in replica.assignment.agenda.topics}
    for lane in replica.lanes:
        share = share_of(lane)
        counts[lane.id.topic].update(wheel=share.wheel, overflow=share.overflow)
    gate = replica.emitter.gate.by_topic() + replica.emitter.pauses.by_topic()
    published = replica.publisher.publish(replica.time.now_ms()).topics
    for topic, count in counts.items():
        shown = published[topic]
        assert (shown.wheel, shown.overflow) == (count["wheel"] + gate[topic], count["overflow"]), topic
