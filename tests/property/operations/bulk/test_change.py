"""Changes of many messages: exactly what was meant is changed, once, whatever fails and whoever goes on."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from policies.headers import ACTION, CHANGE, ID
from policies.model import Policy
from policies.topic.log import Change as PolicyChange
from policies.topic.log import PolicyLog, encode_change
from sidecar.model.record import Held, Outcome, TopicPartition, held_id
from sidecar.operations.bulk.changes import Wanted
from sidecar.operations.bulk.plan import Item, Selection, When
from sidecar.operations.jobs.job import State
from tests.unit.change_world import LANES, NOW_MS, CrashError, MemoryChanges

BY_MS = 600_000
ATTEMPTS_MAX = 200
Messages = list[tuple[TopicPartition, int, str | None, str]]

messages = st.lists(
    st.tuples(
        st.sampled_from(LANES),
        st.integers(NOW_MS, NOW_MS + 20),
        st.one_of(st.none(), st.integers(0, 30).map(str)),
        st.sampled_from(["mail", "push"]),
    ),
    max_size=40,
)
filters = st.sampled_from(
    [
        {}, {"topic": "a"}, {"target": "mail"}, {"due_from": NOW_MS + 5, "due_to": NOW_MS + 15}, {"id": "7"},
        {"ids": ["1", "3", "12", "30", "later 3", "nobody"], "topic": "a"}, {"ids": [str(id) for id in range(15)]},
    ]
)  # fmt: skip
TABLE = PolicyLog()
for number, topic in enumerate(("a", "b")):
    given_policy: dict[str, Any] = {"name": topic, "match": {"topics": [topic]}, "delay": {"max": "400d"}}
    policy = Policy.model_validate({**given_policy, "target": {"allow": ["*"]}})
    change = PolicyChange(write=topic, name=topic, expected=0, author="t", managed_by="api", policy=policy)
    TABLE.apply(number, encode_change(change), NOW_MS)


def fill(world: MemoryChanges, given_messages: Messages) -> None:
    for lane, due_ms, id, target in given_messages:
        world.group.accept(lane, due_ms, id, target=target)


def reachable(world: MemoryChanges) -> set[tuple[TopicPartition, int]]:
    """Held ones with an id that no later one in their lane has."""
    latest: dict[tuple[TopicPartition, bytes | None], int] = {}
    for lane, records in world.group.lanes.items():
        for one in records.values():
            if id := dict(one.trailer).get(ID):
                latest[lane, id] = max(latest.get((lane, id), -1), one.offset)
    return {(lane, offset) for (lane, _), offset in latest.items()}


def meant(world: MemoryChanges, selection: Selection) -> dict[tuple[TopicPartition, int], Held]:
    query = selection.query
    return {
        (lane, one.offset): one
        for lane, records in world.group.lanes.items()
        for one in records.values()
        if query.wants_lane(lane)
        and query.matches(one)
        and one.trailer
        and (selection.ids is None or held_id(one) in selection.ids)
    }


def plan(world: MemoryChanges, action: str, selection: Selection) -> str:
    when = When(by_ms=BY_MS) if action == "reschedule" else When()
    return world.changes.plan(Wanted(action, selection, when, 0, True, "me")).plan.id


@settings(deadline=None)
@given(messages, messages, filters, st.sampled_from(["cancel", "reschedule", "fire"]), st.data())
def test_a_plan_and_its_run_change_exactly_what_was_held_and_matched(
    before: Messages, later: Messages, filter: dict[str, Any], action: str, data: st.DataObject
) -> None:
    world = MemoryChanges(lambda: TABLE.table, in_flight_max=data.draw(st.integers(1, 10)))
    fill(world, before)
    selection = Selection(**filter)
    wanted = meant(world, selection)
    plan_id = plan(world, action, selection)
    planned = world.changes.get(plan_id).progress.planned
    assert planned.messages == len(wanted)
    assert planned.targets == Counter(one.target for one in wanted.values())
    fill(world, [(lane, due_ms, id and f"later {id}", target) for lane, due_ms, id, target in later])
    can_be_hit = reachable(world) & wanted.keys()
    crashes = data.draw(st.integers(0, 4))
    emitted = _run(world, plan_id, data, crashes)

    change = world.changes.get(plan_id)
    assert change.state is State.DONE
    assert not change.progress.pending
    receipts = {
        (r["position"]["topic"], r["position"]["partition"], r["position"]["offset"]): r for r in world.jobs.receipts()
    }
    assert len(receipts) == len(world.jobs.receipts()), "a message has two receipts"
    assert receipts.keys() <= {(*lane, offset) for lane, offset in wanted}
    assert change.progress.outcomes == Counter(receipt["outcome"] for receipt in receipts.values())
    done = {"cancel": "cancelled", "reschedule": "rescheduled", "fire": "fired"}[action]
    event(f"{crashes} crashes, {change.progress.outcomes.get(done, 0) > 0}")
    theirs = changed_by_others(world, plan_id)
    event(f"others changed some: {bool(theirs & wanted.keys())}")
    for (lane, offset), one in wanted.items():
        receipt, line = receipts.get((*lane, offset)), world.group.lines.get((*lane, offset))
        if (lane, offset) in emitted:
            # A later one had its id, when it was asked for: then nobody knew it.
            outcomes = {"too_late"} if (lane, offset) in can_be_hit else {"too_late", "unknown"}
            assert receipt is None or receipt["outcome"] in outcomes
        elif (lane, offset) in theirs:
            assert receipt is None or receipt["outcome"] in {"too_late", "unknown"}, "claimed, and not done by it"
        elif (lane, offset) in can_be_hit:
            assert receipt is not None
            assert receipt["outcome"] == done
            assert line is not None
            assert line.related == receipt["control"]["offset"]
            if action == "reschedule" and (lane, line.related) not in theirs:
                moved = world.group.lanes[lane][line.related]
                assert moved.due_ms == receipt["due"] == one.due_ms + BY_MS, "it was moved twice, or not at all"
        else:
            assert receipt is not None  # a later one has its id, or had
            assert receipt["outcome"] == ("unknown" if line is None else done)
    for lane in LANES:
        for offset in range(len([m for m in (*before, *later) if m[0] == lane])):
            if (lane, offset) not in wanted and (lane, offset) not in emitted | theirs:
                assert offset in world.group.lanes[lane], f"{lane} {offset} was not meant"


def changed_by_others(world: MemoryChanges, plan_id: str) -> set[tuple[TopicPartition, int]]:
    """Whom a control record has hit that isn't of this plan."""
    return {
        (TopicPartition(topic, partition), offset)
        for (topic, partition, offset), line in world.group.lines.items()
        if line.outcome in (Outcome.CANCELLED, Outcome.MOVED)
        and line.related != offset
        and (CHANGE, plan_id.encode()) not in world.group.controls[topic, partition, line.related]
    }


def _run(world: MemoryChanges, plan_id: str, data: st.DataObject, crashes: int) -> set[tuple[TopicPartition, int]]:
    """Run it to its end, over crashes at random calls, while some messages fall due, and others act on some."""
    group, jobs = world.group, world.jobs
    emitted: set[tuple[TopicPartition, int]] = set()
    left = [data.draw(st.integers(0, 12)) for _ in range(crashes)]
    fall_due, others_act = data.draw(st.booleans()), data.draw(st.booleans())
    meant_first = {(lane, offset) for lane, records in group.lanes.items() for offset in records}

    def fault(call: str) -> None:
        if fall_due and call in ("page", "send") and data.draw(st.integers(0, 5)) == 0:
            due = [place for place in meant_first if place[1] in group.lanes[place[0]]]
            if due:
                place = data.draw(st.sampled_from(sorted(due)))
                group.emit(*place)
                emitted.add(place)
        if others_act and call in ("page", "send", "shipped") and data.draw(st.booleans()):
            named = sorted(
                (lane, one.trailer[0]) for lane, held in group.lanes.items() for one in held.values() if one.trailer
            )
            if named:
                lane, id = data.draw(st.sampled_from(named))
                group.write(lane, [id, (ACTION, data.draw(st.sampled_from([b"cancel", b"fire"])))])
        if left:
            left[0] -= 1
            if left[0] < 0:
                left.pop(0)
                raise CrashError(call)

    group.fault = jobs.fault = fault
    begun = False
    for _ in range(ATTEMPTS_MAX):
        try:
            work = world.work(plan_id)
            if not begun and jobs.changes[plan_id].state is not State.RUNNING:
                work.begin()
            begun = True
            work.go_on()
            break
        except CrashError:
            continue
    else:
        pytest.fail("it never ends")
    group.fault = jobs.fault = lambda _: None
    return emitted


def test_what_was_pending_at_a_crash_and_had_acted_has_its_receipt() -> None:
    world = MemoryChanges(lambda: TABLE.table)
    fill(world, [(LANES[0], NOW_MS + n, str(n), "mail") for n in range(3)])
    plan_id = plan(world, "cancel", Selection(topic="a"))
    work = world.work(plan_id)
    work.begin()

    def fault(call: str) -> None:
        if call == "outcomes":
            raise CrashError

    world.group.fault = fault
    with pytest.raises(CrashError):
        work.go_on()
    assert [item.id for item in world.jobs.changes[plan_id].progress.pending] == ["0", "1", "2"]
    assert isinstance(world.jobs.changes[plan_id].progress.pending[0], Item)
    world.group.fault = lambda _: None
    world.work(plan_id).go_on()
    assert [receipt["outcome"] for receipt in world.jobs.receipts()] == ["cancelled"] * 3
    assert [receipt["control"]["offset"] for receipt in world.jobs.receipts()] == [3, 4, 5]
    assert [line.outcome for place, line in world.group.lines.items() if place[2] < 3] == [Outcome.CANCELLED] * 3
