"""A look-up by id is whole when each partition is read to its end: records that nobody has read may have the id."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.kafka.backlog import BacklogUnavailable
from sidecar.lookup import group as held_group
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.meeting import Meeting
from sidecar.lookup.query import Answer, LookUpUnavailable, Query
from sidecar.model.record import TopicPartition
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import report_of

ONE, OTHER = TopicPartition("gold", 0), TopicPartition("gold", 1)


class Replica:
    """The only process of the group. `reads` is called before each answer; what it returns is what it has of the id."""

    def __init__(self, reads: Callable[["Replica"], Sequence[int]] = lambda _: ()) -> None:
        self.next = {ONE: 0, OTHER: 0}
        self.asked = 0
        self._reads = reads

    def views(self) -> list[Any]:
        return [SimpleNamespace(lane=lane, next=offset) for lane, offset in self.next.items()]

    def find(self, id: str, query: Query) -> Answer:
        self.asked += 1
        found = self._reads(self)
        rows = [
            {
                "id": id,
                "source": "gold",
                "due": 1,
                "tier": "wheel",
                "position": {**TopicPartition("gold", 0)._asdict(), "offset": offset},
            }
            for offset in found
        ]
        return Answer(list(self.next), rows, None, {}, list(self.next.values()))


def look_up(replica: Any, backlog: FakeBacklog) -> GroupLookUp:
    redis: Any = SimpleNamespace(publish=lambda *_: 1)  # nobody else listens
    return GroupLookUp(lambda: replica, Meeting(redis, "g"), lambda: {"gold": 2}, backlog, report_of)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_group, "PROGRESS_S", 0.001)


def test_all_is_read() -> None:
    replica = Replica()
    assert look_up(replica, FakeBacklog({ONE: 0, OTHER: 0})).find_to_end("a", Query()) == ([], [])


def test_what_is_being_read_is_waited_for() -> None:
    def reads(replica: Replica) -> Sequence[int]:
        replica.next[ONE] = min(replica.next[ONE] + 1, 5)
        return [4] if replica.next[ONE] == 5 else []

    rows, missing = look_up(Replica(reads), FakeBacklog({ONE: 5, OTHER: 0}, {ONE: [4]})).find_to_end("a", Query())
    assert ([row["position"]["offset"] for row in rows], missing) == ([4], [])


def test_a_partition_with_records_that_nobody_reads_is_missing() -> None:
    replica = Replica()
    backlog = FakeBacklog({ONE: 5, OTHER: 0}, {ONE: [4]})
    assert look_up(replica, backlog).find_to_end("a", Query()) == ([], [ONE])
    assert replica.asked < 5  # it stands still: nobody waits for long


def test_marks_of_transactions_are_no_records() -> None:
    assert look_up(Replica(), FakeBacklog({ONE: 5, OTHER: 1})).find_to_end("a", Query()) == ([], [])


def test_a_partition_whose_end_nobody_knows_is_missing() -> None:
    assert look_up(Replica(), FakeBacklog({ONE: 0})).find_to_end("a", Query()) == ([], [OTHER])


def test_what_is_found_at_once_needs_no_brokers() -> None:
    backlog: Any = None
    rows, missing = look_up(Replica(lambda _: [0]), backlog).find_to_end("a", Query())
    assert (len(rows), missing) == (1, [])


def test_one_source_is_asked_about_alone() -> None:
    backlog = FakeBacklog({ONE: 5, OTHER: 5}, {ONE: [4]})
    assert look_up(Replica(), backlog).find_to_end("a", Query(topic="gold", partition=1)) == ([], [])
    assert look_up(Replica(), backlog).find_to_end("a", Query(topic="gold", partition=0)) == ([], [ONE])


def test_brokers_that_do_not_answer_leave_nothing_known() -> None:
    backlog: Any = SimpleNamespace()

    def ends(_: object) -> Any:
        raise BacklogUnavailable("no answer")

    backlog.ends = ends
    with pytest.raises(LookUpUnavailable, match="no answer"):
        look_up(Replica(), backlog).find_to_end("a", Query())
