"""Counts of a rebuild."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.storage.rebuild import RebuildChecksum, RebuildPlan
from sidecar.model.record import Position, TopicPartition

places = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)


@given(
    places, places, st.tuples(st.integers(-1, 10), st.integers(-1, 10)), st.frozensets(st.integers(0, 9), max_size=3)
)
def test_it_counts_what_is_behind_the_cursor_and_not_left_out_in_any_order(
    some: list[tuple[int, int]], more: list[tuple[int, int]], cursor: tuple[int, int], skip: frozenset[int]
) -> None:
    plan = RebuildPlan(TopicPartition("in", 0), "", 0, 0, Position(0, 0), Position(*cursor), skip, 0, 0, 0, 0)
    account, other = RebuildChecksum(), RebuildChecksum()
    account.add(some, plan)
    account.add(more, plan)
    other.add(sorted(some + more), plan)
    assert account == other
    assert account.beyond == sum(place > cursor and place[1] not in skip for place in some + more)
    changed = [*more, (99, 99)]
    other.add(changed, plan)
    assert not account.agrees(other)
