"""The ring of events against a list that keeps all: who resumes hears exactly what came after, or of the gap."""

from hypothesis import given
from hypothesis import strategies as st

from api.events.ring import NAMES_MAX, Difference, EventName, Ring, difference

names = st.sampled_from(EventName)
snapshots = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2))


@given(st.lists(names), st.integers(1, 9), st.data())
def test_after_any_event_comes_exactly_the_rest_or_a_gap_is_told(
    added: list[EventName], kept: int, data: st.DataObject
) -> None:
    ring = Ring("run", kept)
    for at_ms, name in enumerate(added):
        ring.add(name, at_ms, Difference())
    heard = data.draw(st.integers(0, len(added)))
    number = ring.number_of(ring.id_of(heard))
    assert number == heard
    rest = ring.after(number)
    if len(added) - heard > kept:
        assert rest is None
    else:
        assert rest is not None
        assert [(one.name, one.at_ms) for one in rest] == list(zip(added, range(len(added)), strict=True))[heard:]
        assert [one.id for one in rest] == [ring.id_of(one) for one in range(heard + 1, len(added) + 1)]


@given(st.text(), st.integers(0, 5))
def test_an_id_of_nobody_is_no_place(id: str, count: int) -> None:
    ring = Ring("run")
    for _ in range(count):
        ring.add(EventName.POLICIES, 0, Difference())
    known = {ring.id_of(number): number for number in range(count + 1)}
    for one in (id, f"run-{id}", f"other-{count}", f"run-{count + 1}", f"run-{'9' * 5_000}", *known):
        found = ring.number_of(one)
        assert found is None or 0 <= found <= count
        assert one not in known or found == known[one]
    assert Ring("another").number_of(ring.id_of(0)) is None


@given(snapshots, snapshots)
def test_a_difference_leads_from_one_snapshot_to_the_other(before: dict[str, int], after: dict[str, int]) -> None:
    found = difference(before, after)
    assert (found is None) == (before == after)
    if found is not None:
        told = {*found.added, *found.changed, *found.removed}
        assert {*before, *found.added} - {*found.removed} == {*after}
        assert all(before[name] == after[name] for name in after.keys() - told)
        assert all(before[name] != after[name] for name in found.changed)
        assert found.more == 0


@given(st.integers(0, 3 * NAMES_MAX), st.integers(0, 3 * NAMES_MAX))
def test_a_difference_is_bounded_and_counts_what_it_leaves_out(gone: int, new: int) -> None:
    found = difference({f"gone-{number}": 1 for number in range(gone)}, {f"new-{number}": 1 for number in range(new)})
    if found is None:
        assert gone == new == 0
    else:
        assert max(len(found.added), len(found.removed)) <= NAMES_MAX
        assert len(found.added) + len(found.removed) + found.more == gone + new
