"""Actions on held records: what becomes of the held one, wherever it is, and of the control record."""

from functools import cache

import pytest

from sidecar.ledger import block
from sidecar.model.record import Headers, Outcome, Position, held_id
from sidecar.overflow.interface import OverflowUnavailable
from tests.unit.engine_bench import LANE, SOURCE, Bench

pytestmark = pytest.mark.slow  # many runs of the engine

FAR_MS = 5_000
Row = tuple[Outcome, int | None]

decode = cache(block.decode)  # the ledger is looked at again and again, and only grows


def settled(bench: Bench) -> dict[int, Row]:
    """Outcome and related offset, by offset."""
    found: dict[int, Row] = {}
    for record in bench.ledger:
        rows = decode(record.value()).settled
        for offset, outcome in zip(rows.offsets, rows.outcomes, strict=True):
            assert offset not in found
            found[offset] = Outcome(outcome), rows.related.get(offset)
    return found


def send(bench: Bench, delay_ms: int, value: bytes = b"v", name: bytes = b"x") -> int:
    return bench.send(value, delay_ms, [("tickover-id", name)])


def act(bench: Bench, action: bytes, delay_ms: int | None = None, name: bytes = b"x", only: int | None = None) -> int:
    condition = [] if only is None else [("tickover-if-offset", b"%d" % only)]
    return bench.send(b"", delay_ms, [("tickover-id", name), ("tickover-action", action), *condition])


def wait_settled(bench: Bench, *offsets: int) -> dict[int, Row]:
    bench.wait_until(lambda: set(offsets) <= set(settled(bench)), 200_000)
    return settled(bench)


def at_rest(bench: Bench) -> None:
    """Nothing is held and everything adds up."""
    bench.run(200)
    assert bench.replica.publisher.survey() == 0
    assert bench.replica.emitter.load.records == 0
    assert bench.replica.emitter.load.bytes == 0
    assert len(bench.lane.ids) == 0
    assert bench.replica.actions.count == 0
    assert not bench.lane.promotion.struck


def in_wheel(bench: Bench) -> int:
    held = send(bench, 1_500)
    bench.run(200)
    assert bench.lane.wheel.count == 1
    return held


def in_overflow(bench: Bench) -> int:
    held = send(bench, FAR_MS)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    return held


def promoted(bench: Bench) -> int:
    held = send(bench, 6_000)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.wait_until(lambda: bench.lane.wheel.count == 1)
    return held


def on_its_way(bench: Bench) -> int:
    def down(method: str, after: bool) -> None:
        if method == "apply":
            raise OverflowUnavailable("down")

    bench.overflow.failing = down
    held = send(bench, FAR_MS)
    bench.wait_until(lambda: bench.lane.changes)
    return held


def about_to_go(bench: Bench) -> int:
    held = send(bench, FAR_MS)
    while not bench.lane.puts:
        bench.step(1)
    return held


PLACES = [in_wheel, in_overflow, promoted, on_its_way, about_to_go]


@pytest.fixture(name="bench", params=[None, str], ids=["at least once", "exactly once"])
def bench_fixture(request: pytest.FixtureRequest) -> Bench:
    return Bench(trouble=request.param)


@pytest.mark.parametrize("held_in", PLACES)
@pytest.mark.parametrize("crash", [False, True], ids=["", "and a crash"])
def test_cancelled_wherever_it_is(bench: Bench, held_in, crash: bool) -> None:
    held = held_in(bench)
    control = act(bench, b"cancel")
    found = wait_settled(bench, held, control)
    bench.overflow.failing = lambda method, after: None
    if crash:
        bench.restart()
    bench.run(FAR_MS + 10_000)

    assert found == {held: (Outcome.CANCELLED, control), control: (Outcome.APPLIED, held)}
    assert bench.values("mail") == []
    assert bench.replica.tally.outcomes[SOURCE, Outcome.CANCELLED] == (0 if crash else 1)
    at_rest(bench)


@pytest.mark.parametrize("held_in", PLACES)
@pytest.mark.parametrize("delay_ms", [300, 8_000])
@pytest.mark.parametrize("crash", [False, True], ids=["", "and a crash"])
def test_rescheduled_wherever_it_is(bench: Bench, held_in, delay_ms: int, crash: bool) -> None:
    held = held_in(bench)
    due_ms = bench.clock.now_ms + delay_ms
    control = act(bench, b"reschedule", delay_ms)
    wait_settled(bench, held)
    if crash:
        bench.restart()
    bench.run(20)
    bench.overflow.failing = lambda method, after: None
    found = wait_settled(bench, control)
    bench.run(FAR_MS)

    assert found == {held: (Outcome.MOVED, control), control: (Outcome.EMITTED, held)}
    [record] = bench.records("mail")
    headers = dict(record.headers() or [])
    assert headers["tickover-due"] == b"%d" % due_ms
    assert headers["tickover-origin"] == b"%s/0/%d" % (SOURCE.encode(), held)
    assert headers["tickover-id"] == b"x"
    assert record.pair == (b"k", b"v")
    assert record.handed_over_ms >= due_ms
    at_rest(bench)


@pytest.mark.parametrize("held_in", PLACES)
def test_fired_wherever_it_is(bench: Bench, held_in) -> None:
    held = held_in(bench)
    asked_ms = bench.clock.now_ms
    control = act(bench, b"fire")
    found = wait_settled(bench, held, control)

    assert found == {held: (Outcome.MOVED, control), control: (Outcome.EMITTED, held)}
    [record] = bench.records("mail")
    assert asked_ms <= int(dict(record.headers() or [])["tickover-due"] or b"0") <= record.handed_over_ms
    assert bench.replica.tally.early == 0
    bench.run(50)
    counts = bench.replica.tally.topic_counts(SOURCE, 0, 0, 0)
    assert (counts.applied, counts.emitted, counts.accepted) == (1, 1, 2)
    bench.overflow.failing = lambda method, after: None
    bench.run(FAR_MS)
    assert len(bench.records("mail")) == 1
    at_rest(bench)


@pytest.mark.parametrize("held_in", PLACES)
def test_replaced_wherever_it_is(bench: Bench, held_in) -> None:
    first = held_in(bench)
    second = send(bench, 3_000, b"second")
    found = wait_settled(bench, first)
    bench.overflow.failing = lambda method, after: None
    found = wait_settled(bench, second)
    bench.run(FAR_MS)

    assert found == {first: (Outcome.REPLACED, second), second: (Outcome.EMITTED, None)}
    assert bench.values("mail") == [b"second"]
    at_rest(bench)


def test_a_message_is_moved_again_and_again_and_cancelled_at_last(bench: Bench) -> None:
    first = send(bench, FAR_MS)
    moves = [act(bench, b"reschedule", delay_ms) for delay_ms in (20_000, 500, 20_000, FAR_MS)]
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    bench.restart()
    bench.run(500)
    cancel = act(bench, b"cancel")
    found = wait_settled(bench, cancel)

    following = [*moves, cancel]
    assert found[first] == (Outcome.MOVED, moves[0])
    assert [found[move] for move in moves[:-1]] == [(Outcome.MOVED, move) for move in moves[1:]]
    assert found[moves[-1]] == (Outcome.CANCELLED, cancel)
    assert found[cancel] == (Outcome.APPLIED, following[-2])
    bench.run(25_000)
    assert bench.values("mail") == []
    at_rest(bench)


def no_such_id(bench: Bench) -> tuple[int, Row]:
    return act(bench, b"cancel", name=b"nobody"), (Outcome.APPLIED, None)


def settled_already(bench: Bench) -> tuple[int, Row]:
    wait_settled(bench, send(bench, 0, name=b"gone"))
    return act(bench, b"reschedule", 5, name=b"gone"), (Outcome.APPLIED, None)


def settled_from_the_overflow(bench: Bench) -> tuple[int, Row]:
    gone = send(bench, 5_000, name=b"gone")
    wait_settled(bench, gone)
    assert held_id(bench.overflow.records[LANE][0]) == "gone"  # its copy is still there
    return act(bench, b"cancel", name=b"gone"), (Outcome.APPLIED, None)


def a_stale_version(bench: Bench) -> tuple[int, Row]:
    """A control record acts only on records before it: read again after the one that replaced, it has no effect."""
    first, control = send(bench, FAR_MS, name=b"s"), act(bench, b"cancel", name=b"s")
    found = wait_settled(bench, first)
    later = send(bench, 2_000, b"later", name=b"s")
    assert wait_settled(bench, later)[later] == (Outcome.EMITTED, None)
    return control, found[control]


def two_at_once(bench: Bench) -> tuple[int, Row]:
    send(bench, FAR_MS, name=b"two")
    act(bench, b"cancel", name=b"two")
    return act(bench, b"fire", name=b"two"), (Outcome.APPLIED, None)


def without_an_id(bench: Bench) -> tuple[int, Row]:
    return bench.send(b"", None, [("tickover-action", b"cancel")]), (Outcome.QUARANTINED, None)


def beyond_the_limit(bench: Bench) -> tuple[int, Row]:
    return act(bench, b"reschedule", 11 * 86_400_000), (Outcome.QUARANTINED, None)


def to_no_time(bench: Bench) -> tuple[int, Row]:
    return act(bench, b"reschedule"), (Outcome.QUARANTINED, None)


@pytest.mark.parametrize("case", [
    no_such_id, settled_already, settled_from_the_overflow, a_stale_version, two_at_once, without_an_id,
    beyond_the_limit, to_no_time,
])  # fmt: skip
def test_what_can_do_nothing_does_nothing_and_is_settled(bench: Bench, case) -> None:
    control, expected = case(bench)
    assert wait_settled(bench, control)[control] == expected


@pytest.mark.parametrize("held_in", PLACES)
@pytest.mark.parametrize("action", [b"cancel", b"reschedule", b"fire"])
def test_an_action_on_one_offset_hits_no_other_and_is_harmless_when_repeated(bench: Bench, held_in, action) -> None:
    held = held_in(bench)
    others = [act(bench, action, 300, only=offset) for offset in (held + 1, held + 1_000)]
    delay_ms = 9_000 if action == b"reschedule" else None
    hits = [act(bench, action, delay_ms, only=held) for _ in range(3)]
    bench.overflow.failing = lambda method, after: None
    found = wait_settled(bench, held, *others, *hits)
    assert found[held] == (Outcome.CANCELLED if action == b"cancel" else Outcome.MOVED, hits[0])
    assert [found[control] for control in (*others, *hits[1:])] == [(Outcome.APPLIED, None)] * 4
    bench.run(FAR_MS + 10_000)
    assert bench.values("mail") == ([] if action == b"cancel" else [b"v"])
    at_rest(bench)


def test_of_two_that_share_an_id_the_later_one_is_hit_first_when_the_other_is_read_again() -> None:
    """By contract there are no two. With other keys they may be, and neither is missed for the other's sake."""
    bench = Bench(trouble=str)
    near = bench.send(b"near", 1_800, [("tickover-id", b"x")], key=b"a")
    bench.run(100)
    far = bench.send(b"far", 60_000, [("tickover-id", b"x")], key=b"b")
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    cancels = [act(bench, b"cancel"), act(bench, b"cancel")]
    bench.restart()
    found = wait_settled(bench, near, far, *cancels)
    assert [found[control] for control in cancels] == [(Outcome.APPLIED, far), (Outcome.APPLIED, near)]
    at_rest(bench)


def test_of_two_that_share_an_id_the_one_is_hit_whose_offset_is_named_wherever_it_is(bench: Bench) -> None:
    near = bench.send(b"near", 6_000, [("tickover-id", b"x")], key=b"a")
    far = bench.send(b"far", 60_000, [("tickover-id", b"x")], key=b"b")
    bench.wait_until(lambda: bench.lane.overflow_held == 2)
    bench.wait_until(lambda: bench.lane.wheel.count == 1)
    cancels = [act(bench, b"cancel", only=far), act(bench, b"cancel", only=near)]
    found = wait_settled(bench, near, far, *cancels)
    assert [found[control] for control in cancels] == [(Outcome.APPLIED, far), (Outcome.APPLIED, near)]
    at_rest(bench)


@pytest.mark.parametrize("named", [False, True], ids=["the latest", "by offset"])
def test_of_two_that_share_an_id_none_is_missed_behind_one_that_was_moved_and_is_read_again(named: bool) -> None:
    bench = Bench(trouble=str)
    far = bench.send(b"far", 60_000, [("tickover-id", b"x")], key=b"b")
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    near = bench.send(b"near", 1_800, [("tickover-id", b"x")], key=b"a")
    move = act(bench, b"reschedule", 1_900)
    wait_settled(bench, near)
    cancels = [act(bench, b"cancel", only=far if named else None), act(bench, b"cancel")]
    bench.restart()
    found = wait_settled(bench, far, move, *cancels)
    hit = [far, move] if named else [move, far]
    assert [found[control] for control in cancels] == [(Outcome.APPLIED, offset) for offset in hit]
    at_rest(bench)


def test_of_two_that_share_an_id_none_is_missed_behind_one_that_comes_at_the_same_time(bench: Bench) -> None:
    far = bench.send(b"far", 60_000, [("tickover-id", b"x")], key=b"b")
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    near = bench.send(b"near", 1_800, [("tickover-id", b"x")], key=b"a")
    cancels = [act(bench, b"cancel"), act(bench, b"cancel")]
    found = wait_settled(bench, near, far, *cancels)
    assert [found[control] for control in cancels] == [(Outcome.APPLIED, near), (Outcome.APPLIED, far)]
    at_rest(bench)


def test_both_times_given_the_absolute_one_wins(bench: Bench) -> None:
    held = in_overflow(bench)
    due_ms = bench.clock.now_ms + 700
    at: Headers = [("tickover-deliver-at", b"%d" % due_ms)]
    bench.send(b"", 9_000, [*at, ("tickover-id", b"x"), ("tickover-action", b"reschedule")])
    wait_settled(bench, held)
    bench.wait_until(lambda: bench.values("mail"))
    assert dict(bench.records("mail")[0].headers() or [])["tickover-due"] == b"%d" % due_ms


def test_records_with_an_id_wait_for_an_overflow_that_is_away_and_others_do_not(bench: Bench) -> None:
    held = in_overflow(bench)
    bench.overflow.failing = down = lambda method, after: (_ for _ in ()).throw(OverflowUnavailable("down"))
    control = act(bench, b"cancel")
    bench.send(b"plain", 100)
    bench.wait_until(lambda: bench.values("mail") == [b"plain"])
    bench.run(5_000)
    assert control not in settled(bench)
    assert bench.overflow.failing is down
    assert bench.replica.actions.count == 1
    bench.overflow.failing = lambda method, after: None
    assert wait_settled(bench, control)[held] == (Outcome.CANCELLED, control)
    bench.run(FAR_MS)
    at_rest(bench)


def test_what_was_cancelled_long_ago_does_not_come_back_with_a_rebuild(bench: Bench) -> None:
    held, control = in_overflow(bench), act(bench, b"cancel")
    wait_settled(bench, held, control)
    kept = send(bench, FAR_MS, b"kept", name=b"y")
    for number in range(5):  # until recovery needs nothing of the cancellation any more
        bench.send(b"%d" % number, 10)
        bench.run(300)
    assert bench.lane.recovery_pointer() > bench.lane.rebuild_pointer()
    assert held not in bench.lane.promotion.skip
    bench.overflow.wipe()
    bench.wait_until(lambda: bench.replica.tally.rebuilds and bench.lane.loss is None)
    assert [copy.offset for copy in bench.overflow.records[LANE]] == [kept]
    bench.run(FAR_MS + 5_000)
    assert b"v" not in bench.values("mail")
    assert b"kept" in bench.values("mail")
    at_rest(bench)


def test_a_moved_record_whose_payload_retention_took_is_counted_and_the_lane_goes_on(bench: Bench) -> None:
    held = in_wheel(bench)
    control = act(bench, b"reschedule", 30_000)
    bench.overflow.failing = lambda method, after: (_ for _ in ()).throw(OverflowUnavailable("down"))
    wait_settled(bench, held)
    bench.replica.crash()
    bench.broker.delete_before(SOURCE, 0, control)
    bench.overflow.failing = lambda method, after: None
    bench.replica = bench.new_replica()
    bench.wait_until(lambda: bench.replica.tally.lost[SOURCE, "source"] == 1)
    after = bench.send(b"after", 0)
    wait_settled(bench, after)
    assert bench.lane.promotion.watermark > Position(0, 0)
    at_rest(bench)


def test_w_does_not_pass_what_has_left_before_the_ledger_says_so() -> None:
    bench = Bench()
    held = in_overflow(bench)
    position = bench.overflow.records[LANE][0].position
    bench.delay_ms = 3_000  # the ledger takes its time
    act(bench, b"cancel")
    bench.wait_until(lambda: held in bench.lane.promotion.struck)
    bench.wait_until(lambda: bench.lane.promotion.cursor > position or not bench.lane.promotion.struck, 40_000)
    if bench.lane.promotion.struck:
        assert bench.lane.promotion.watermark < position
    bench.delay_ms = 1
    bench.run(FAR_MS)
    assert bench.values("mail") == []
    assert bench.lane.promotion.watermark > position
    at_rest(bench)


@pytest.mark.parametrize("delay_ms", [1_500, FAR_MS], ids=["in the wheel", "in the overflow"])
def test_messages_with_the_headers_of_one_that_was_emitted_all_fire(bench: Bench, delay_ms: int) -> None:
    """A consumer copies all headers onto the messages that follow: none replaces another by the id that came along."""
    bench.send(b"first", 10, [("mine", b"1"), ("tickover-id", b"x")])
    bench.wait_until(lambda: bench.values("mail"))
    [emitted] = bench.records("mail")
    copied = list(emitted.headers() or [])
    sent = [b"follow-up %d" % number for number in range(3)]
    for value in sent:
        bench.send(value, delay_ms, copied)
        bench.run(300)
    bench.wait_until(lambda: len(bench.values("mail")) == 4, 200_000)
    assert bench.values("mail") == [b"first", *sent]
    for record in bench.records("mail")[1:]:
        names = [name for name, _ in record.headers() or []]
        assert names == ["mine", "tickover-origin", "tickover-due", "tickover-policy", "tickover-id"]
        assert dict(record.headers() or [])["tickover-origin"] == b"reminders/0/0"
    at_rest(bench)


def test_the_last_of_messages_with_copied_headers_is_the_one_that_its_id_means(bench: Bench) -> None:
    copied: Headers = [("tickover-origin", b"reminders/0/0"), ("tickover-id", b"x")]
    kept, cancelled = (bench.send(value, 1_500, copied) for value in (b"kept", b"cancelled"))
    bench.run(100)
    control = act(bench, b"cancel")
    rows = wait_settled(bench, kept, cancelled, control)
    assert rows[cancelled] == (Outcome.CANCELLED, control)
    assert bench.values("mail") == [b"kept"]


def test_who_has_its_own_id_still_replaces_what_had_it_before(bench: Bench) -> None:
    """Also where what was before came with copied headers."""
    before = bench.send(b"before", 1_500, [("tickover-origin", b"reminders/0/0"), ("tickover-id", b"x")])
    bench.run(100)
    after = send(bench, 1_500, b"after")
    assert wait_settled(bench, before, after)[before] == (Outcome.REPLACED, after)
    assert bench.values("mail") == [b"after"]
