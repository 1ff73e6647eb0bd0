"""Marks of letters that were sent again: all of every plan's are found, no others, however written and read back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.model.record import Place
from sidecar.model.redrive_marks import BITS_LENGTH_MAX, BLOCK_LETTERS, Block, Kept, Marks
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.redriven_log import GAP_MAX, STALE_MAX
from tests.unit.letter_world import NOW_MS, MemoryRedriven, Record

TOPIC = "orders-dlq"
Batches = list[tuple[str, list[Place]]]
EDGES = [0, 1, BLOCK_LETTERS - 1, BLOCK_LETTERS, BLOCK_LETTERS + 1, 3 * BLOCK_LETTERS]
places = st.builds(Place, st.just(TOPIC), st.integers(0, 2), st.one_of(st.sampled_from(EDGES), st.integers(0, 20_000)))
batches = st.lists(
    st.tuples(st.sampled_from(["p", "q", "of/a job"]), st.lists(places, min_size=1, max_size=20)), max_size=8
)


@settings(deadline=None)
@given(st.sampled_from(["", "id", "g3NjYGkRTia/L5VEgo+Bkg", "/"]), batches, st.lists(places, max_size=20))
def test_exactly_what_was_sent_is_redriven_by_whom_sent_it_last(
    topic_id: str, batches: Batches, others: list[Place]
) -> None:
    log = MemoryRedriven({TOPIC: topic_id})
    sent: dict[Place, str] = {}
    for number, (plan, batch) in enumerate(batches):
        log.write(plan, batch, NOW_MS + number)
        sent |= dict.fromkeys(batch, plan)
    find = log.of([TOPIC])
    for place in {*sent, *others}:
        found = find(place)
        assert (found is not None) == (place in sent)
        if found is not None:
            assert NOW_MS <= found.first_ms <= found.last_ms < NOW_MS + len(batches)
    last = {place: plan for plan, batch in batches[-1:] for place in batch}
    found_last = {place: find(place) for place in last}
    assert {place: sent and sent.plan for place, sent in found_last.items()} == last
    assert log.open({TOPIC: dict.fromkeys(range(3), (0, 20_001))}) == {TOPIC: 3 * 20_001 - len(sent)}
    gone = log.pen("later", TOPIC).stale(dict.fromkeys(range(3), 8 * BLOCK_LETTERS))
    assert {record.key for record in gone} == {record.key for record in log.taken}


def test_two_plans_that_write_at_the_same_time_keep_each_others_letters() -> None:
    log = MemoryRedriven()
    one, other = log.pen("one", TOPIC), log.pen("other", TOPIC)
    for offset in range(10):
        for pen, at in ((one, offset), (other, 100 + offset)):
            for record in pen.records([Place(TOPIC, 0, at)], NOW_MS):
                log.take(Record(log.end, record.key, record.value))
                log.end += 1
            pen.written()
    find = log.of([TOPIC])
    assert [offset for offset in range(200) if find(Place(TOPIC, 0, offset))] == [*range(10), *range(100, 110)]


def test_a_batch_that_was_not_sent_leaves_no_letter_marked() -> None:
    log = MemoryRedriven()
    pen = log.pen("p", TOPIC)
    pen.records([Place(TOPIC, 0, 1)], NOW_MS)  # its transaction is aborted
    [record] = pen.records([Place(TOPIC, 0, 2)], NOW_MS)
    pen.written()
    log.take(Record(0, record.key, record.value))
    find = log.of([TOPIC])
    assert [offset for offset in range(4) if find(Place(TOPIC, 0, offset))] == [2]


def test_a_topic_that_was_made_anew_has_open_letters() -> None:
    log = MemoryRedriven({TOPIC: "before"})
    log.write("p", [Place(TOPIC, 0, 7)])
    assert log.of([TOPIC])(Place(TOPIC, 0, 7)) is not None
    log.ids[TOPIC] = "after"
    assert log.of([TOPIC])(Place(TOPIC, 0, 7)) is None
    assert len(log.pen("q", TOPIC).stale({0: 0})) == 1


def test_nothing_is_sent_while_nobody_can_say_which_topic_it_is() -> None:
    log = MemoryRedriven()
    log._ids = lambda _: {}
    with pytest.raises(LettersUnavailable, match=TOPIC):
        log.pen("p", TOPIC)


def test_marks_end_with_their_letters_and_no_sooner() -> None:
    log = MemoryRedriven({TOPIC: "id", "other": "id2"})
    log.write("p", [Place(TOPIC, 0, offset) for offset in (5, BLOCK_LETTERS + 5)])
    log.write("p", [Place("other", 0, 5)])
    pen = log.pen("q", TOPIC)
    assert pen.stale({0: BLOCK_LETTERS - 1}) == []  # the last letter of the block is still there
    [end] = pen.stale({0: BLOCK_LETTERS})
    log.take(Record(log.end, end.key, end.value))
    assert log.of([TOPIC])(Place(TOPIC, 0, 5)) is None
    assert log.of([TOPIC])(Place(TOPIC, 0, BLOCK_LETTERS + 5)) is not None
    assert log.of(["other"])(Place("other", 0, 5)) is not None
    log.write("p", [Place(TOPIC, 0, BLOCK_LETTERS * n) for n in range(STALE_MAX + 9)])
    assert len(pen.stale({0: BLOCK_LETTERS * (STALE_MAX + 20)})) == STALE_MAX


def test_of_a_topic_so_many_letters_are_open_as_no_plan_has_sent() -> None:
    log = MemoryRedriven({TOPIC: "id"})
    for plan in ("p", "q"):
        log.write(plan, [Place(TOPIC, 0, offset) for offset in range(BLOCK_LETTERS - 10, BLOCK_LETTERS + 10)])
    log.write("p", [Place(TOPIC, 1, 3)])
    log.write("p", [Place("other", 1, 4)])
    ends = {0: (0, 5_000), 1: (0, 9)}
    assert log.open({TOPIC: ends}) == {TOPIC: 5_000 - 20 + 9 - 1}
    assert log.open({TOPIC: {0: (BLOCK_LETTERS - 3, 5_000)}}) == {TOPIC: 5_000 - BLOCK_LETTERS + 3 - 13}
    assert log.open({TOPIC: {0: (BLOCK_LETTERS + 20, 5_000)}}) == {TOPIC: 5_000 - BLOCK_LETTERS - 20}
    log.ids[TOPIC] = "after"
    assert log.open({TOPIC: ends}) == {TOPIC: 5_009}


def test_once_all_was_sent_none_is_open_although_marks_of_transactions_have_offsets() -> None:
    log = MemoryRedriven({TOPIC: "id"})
    pen = log.pen("p", TOPIC)
    pen.note_gap(0, 0, 2)
    pen.records([Place(TOPIC, 0, 2)], NOW_MS)  # its transaction is aborted
    pen.note_gap(0, 3, 5)
    for record in pen.records([Place(TOPIC, 0, 2)], NOW_MS):
        log.take(Record(log.end, record.key, record.value))
        log.end += 1
    pen.written()
    assert log.open({TOPIC: {0: (0, 5)}}) == {TOPIC: 0}
    assert pen.records([], NOW_MS) == []
    pen.note_gap(0, 5, 5 + GAP_MAX + 1)
    assert pen.records([], NOW_MS) == []


def test_no_answer_about_the_ids_of_topics_is_not_an_answer() -> None:
    log = MemoryRedriven({TOPIC: "id"})
    log.write("p", [Place(TOPIC, 0, 1)])
    log.ids[TOPIC] = ""
    for ask in (lambda: log.of([TOPIC]), lambda: log.pen("q", TOPIC), lambda: log.open({TOPIC: {0: (0, 5)}})):
        with pytest.raises(LettersUnavailable, match=TOPIC):
            ask()
    assert log.pen("q", TOPIC, "id").sent(Place(TOPIC, 0, 1)) is not None


def test_a_million_letters_take_little_room() -> None:
    value = Kept(0, NOW_MS, NOW_MS).plus(range(BLOCK_LETTERS), NOW_MS).value()
    assert len(value) * 1_000_000 // BLOCK_LETTERS < 250_000
    assert len(value) - 80 <= BITS_LENGTH_MAX


def test_garbage_is_passed_over() -> None:
    marks, block = Marks(), Block("id", TOPIC, 0, 0)
    good = Kept(1, NOW_MS, NOW_MS).value()
    for key in (
        b"",
        b"/" * 9,
        b"\xff",
        b"id/orders-dlq/0",
        b"id/orders-dlq/x/0/p",
        b"id/orders-dlq/0/" + b"9" * 30 + b"/p",
    ):
        marks.apply(key, good)
    newer = good.replace(b'"schema_version":1', b'"schema_version":2')
    too_long = Kept(1 << BLOCK_LETTERS, NOW_MS, NOW_MS).value()
    for value in (b"{", b"[]", b"null", b'{"first_ms":1,"last_ms":1,"sent":"?"}', newer, too_long, b"[" * 100_000):
        marks.apply(block.key("p"), value)
    assert marks.find("id", Place(TOPIC, 0, 0)) is None
    marks.apply(block.key("p"), good)
    assert marks.find("id", Place(TOPIC, 0, 0)) is not None
    marks.apply(block.key("p"), b"")
    marks.apply(block.key("p"), b"")
    assert marks.find("id", Place(TOPIC, 0, 0)) is None
