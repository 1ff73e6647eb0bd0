import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Full

import pytest

from policies.headers import ID
from sidecar.engine.engine import COMMANDS_MAX, COMMANDS_PER_TURN_MAX
from sidecar.engine.intake import decide
from sidecar.ledger.block import decode
from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.model.record import Headers, Held, Outcome
from sidecar.overflow.interface import Change, OverflowUnavailable
from tests.simulation import replica
from tests.simulation.fake_overflow import FakeOverflow
from tests.simulation.fake_time import FakeTime
from tests.simulation.replica import LEDGER, STATE_REPEAT_MS
from tests.simulation.workload import QUARANTINE
from tests.unit.engine_bench import LANE, SOURCE, Bench, rulebook


@pytest.fixture(name="bench")
def bench_fixture() -> Bench:
    return Bench()


def test_a_record_is_emitted_when_it_is_due_and_not_before(bench: Bench) -> None:
    sent_ms = bench.clock.now_ms
    bench.send(b"hello", 500)
    bench.wait_until(lambda: bench.values("mail"))
    [record] = bench.records("mail")
    assert record.pair == (b"k", b"hello")
    assert 500 <= record.handed_over_ms - sent_ms <= 505
    assert record.headers() == [
        ("tickover-origin", b"reminders/0/0"),
        ("tickover-due", b"%d" % (sent_ms + 500)),
        ("tickover-policy", b"reminders@1"),
    ]


def test_what_is_overdue_is_emitted_at_once(bench: Bench) -> None:
    bench.send(b"late", headers=[("tickover-deliver-at", b"1970-01-01T00:00:01Z")])
    bench.run(20)
    assert bench.values("mail") == [b"late"]


def test_far_records_wait_in_the_overflow_and_come_back_in_order(bench: Bench) -> None:
    for delay_ms in (9_000, 5_000, 7_000):
        bench.send(b"%d" % delay_ms, delay_ms)
    bench.run(1_000)
    assert len(bench.overflow.records[LANE]) == 3
    assert bench.lane.wheel.count == 0
    assert bench.lane.offsets.low == 3, "the source is not held open by what the overflow has"
    bench.run(9_000)
    assert bench.values("mail") == [b"5000", b"7000", b"9000"]
    assert bench.replica.publisher.survey() == 0


def test_what_was_overtaken_on_its_way_to_redis_is_counted_there_after_a_crash(bench: Bench) -> None:
    """Redis is cut off until it is too late to wait for it, then back; the process is killed before they are due."""
    away = False

    def cut_off(method: str, after: bool) -> None:
        if away:
            raise OverflowUnavailable("down")

    bench.overflow.failing = cut_off
    bench.send(b"promoted", 4_500)
    bench.wait_until(lambda: bench.lane.overflow_held == 1)
    away = True
    for _ in range(2):
        bench.send(b"overtaken", 3_500)
    bench.wait_until(lambda: bench.lane.wheel.count == 2)
    away = False
    bench.wait_until(lambda: bench.lane.acknowledged == 2 and bench.lane.promotion.windows)
    bench.lane.touch()
    bench.run(100)
    bench.restart()
    counts = []

    def has_fired() -> bool:
        topics = bench.replica.publisher.publish(bench.clock.now_ms).topics
        counts.extend([topics[SOURCE].overflow] if SOURCE in topics else [])
        return len(bench.values("mail")) == 3

    bench.wait_until(has_fired)
    assert (min(counts), max(counts)) == (0, 3), "the two that were overtaken, too"
    bench.run(200)
    assert (bench.lane.overflow_held, bench.lane.overflow_sealed, bench.replica.publisher.survey()) == (0, 0, 0)


def test_for_how_long_the_overflow_holds_its_last_record_is_known_until_it_holds_none(bench: Bench) -> None:
    publisher = bench.replica.publisher
    publisher.survey()
    assert publisher.held_for_ms == {}
    for delay_ms in (5_000, 9_000):
        bench.send(b"far", delay_ms)
    bench.run(1_000)
    publisher.survey()
    assert 7_500 <= publisher.held_for_ms[SOURCE] <= 8_000
    bench.run(9_000)
    publisher.survey()
    assert publisher.held_for_ms == {}


def test_what_an_overflow_that_is_away_may_have_due_shows_as_overdue(bench: Bench) -> None:
    def away(method: str, after: bool) -> None:
        raise OverflowUnavailable("down")

    def overdue_ms() -> int:
        return bench.replica.publisher.publish(bench.clock.now_ms).oldest_overdue_ms

    bench.run(1_000)
    assert overdue_ms() == 0
    bench.send(b"far", 5_000)
    bench.run(1_000)
    well, bench.overflow.failing = bench.overflow.failing, away
    bench.run(1_500)
    assert overdue_ms() == 0, "within the horizon nothing is unknown"
    bench.run(3_500)
    assert 500 < overdue_ms() < 1_500, "before that nothing was due, as was seen when it answered"
    bench.overflow.failing = well
    bench.run(1_000)
    assert (bench.values("mail"), overdue_ms()) == ([b"far"], 0)


def test_a_policy_applies_to_records_decided_after_it(bench: Bench) -> None:
    bench.send(b"before")
    bench.step()
    bench.tables[2] = rulebook(2, "300ms")
    bench.replica.engine.table = bench.tables[2]
    bench.send(b"after")
    bench.wait_until(lambda: len(bench.values("mail")) == 2)
    assert bench.values("mail") == [b"after", b"before"]
    assert [dict(record.headers() or [])["tickover-policy"] for record in bench.records("mail")] == [
        b"reminders@2",
        b"reminders@1",
    ]


def test_intake_pauses_at_the_limit_and_goes_on_below_it() -> None:
    bench = Bench(wheel_records_max=20)
    for number in range(30):
        bench.send(b"%d" % number, 900)
    bench.run(100)
    assert bench.replica.assignment.paused
    for number in range(30, 100):
        bench.send(b"%d" % number, 900)
    bench.run(300)
    assert bench.replica.emitter.load.records == 30, "nothing more is read"
    bench.wait_until(lambda: len(bench.values("mail")) == 100)
    bench.run(200)
    assert not bench.replica.assignment.paused


@pytest.mark.parametrize("crash", [False, True])
def test_intake_waits_while_too_many_tables_have_decided_what_is_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    """Each block has them all."""
    monkeypatch.setattr("sidecar.engine.partition.partition.RUNS_MAX", 3)
    bench.send(b"open", 1_500)
    bench.step()
    for version in range(2, 8):
        bench.tables[version] = bench.replica.engine.table = rulebook(version, "1s")
        bench.send(b"%d" % version, 1_600)
        bench.run(100)
    assert (len(bench.lane.runs), bench.lane.offsets.next, bench.lane.intake_held) == (3, 3, True)
    if crash:
        bench.restart()
    bench.wait_until(lambda: len(bench.values("mail")) == 7)
    assert {*bench.values("mail")} == {b"open", *(b"%d" % version for version in range(2, 8))}
    bench.run(200)
    assert not bench.lane.intake_held


def test_a_clean_end_commits_everything(bench: Bench) -> None:
    bench.send(b"one", 100)
    bench.send(b"far", 60_000)
    bench.run(130)
    assert bench.values("mail") == [b"one"]
    bench.replica.stop()
    offset, metadata = bench.group.committed[LANE]
    state = decode_metadata(offset, metadata)
    assert state is not None
    assert offset == 2
    assert state.block_offset == bench.ledger[-1].offset()
    assert state.acknowledged == 1
    bench.replica = bench.new_replica()
    bench.run(60_000)
    assert bench.values("mail") == [b"one", b"far"]


def test_a_revoked_partition_is_committed_before_it_goes(bench: Bench) -> None:
    bench.send(b"one", 100)
    bench.wait_until(lambda: bench.values("mail"))
    bench.delay_ms = 100  # a commit that nobody waits for would come too late
    former, bench.replica = bench.replica, bench.new_replica()
    former.turn()
    assert bench.group.owner[LANE] is None
    offset, metadata = bench.group.committed[LANE]
    state = decode_metadata(offset, metadata)
    assert state is not None
    assert (offset, state.block_offset) == (1, bench.ledger[-1].offset())


def test_a_revoked_partition_puts_nothing_more_into_redis(bench: Bench) -> None:
    """The next owner reads that again and puts it: a handover would wait for work that is done twice."""
    bench.send(b"far", 30_000)
    bench.wait_until(lambda: bench.lane.puts)
    former, bench.replica = bench.replica, bench.new_replica()
    former.turn()
    assert bench.group.owner[LANE] is None
    assert not any(decode(record.value() or b"").entries.offsets for record in bench.ledger)


def test_what_was_not_settled_before_a_crash_is_emitted_again(bench: Bench) -> None:
    bench.send(b"one", 100)
    bench.wait_until(lambda: bench.values("mail"))
    bench.restart()
    bench.run(500)
    assert bench.values("mail") == [b"one", b"one"]
    bench.restart()
    bench.run(500)
    assert bench.values("mail") == [b"one", b"one"], "settled by now"


def test_a_held_record_that_its_source_lost_before_redis_had_it_is_counted_and_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def away(method: str, after: bool) -> None:
        raise OverflowUnavailable("down")

    well, bench.overflow.failing = bench.overflow.failing, away
    compacted = bench.send(b"compacted", 5_000)
    bench.send(b"kept", 5_000)
    bench.run(500)
    bench.replica.crash()
    log = bench.broker.logs[SOURCE][0]
    log.records = [record for record in log.records if record.offset() != compacted]
    bench.overflow.failing = well
    bench.replica = bench.new_replica()
    with caplog.at_level(logging.ERROR, "sidecar.engine.engine"):
        bench.wait_until(lambda: bench.values("mail"))
    assert bench.values("mail") == [b"kept"]
    assert bench.replica.tally.lost == {(SOURCE, "source"): 1}
    [said] = [record.__dict__ for record in caplog.records if record.levelno == logging.ERROR]
    assert (said["count"], said["first_offset"]) == (1, compacted)
    assert bench.replica.publisher.survey() == 0


def test_a_source_that_may_not_be_consumed_any_more_goes_on_where_it_was_begun_and_nowhere_else(bench: Bench) -> None:
    bench.replica.engine.submit(lambda engine: engine.refuse(frozenset({SOURCE})))
    bench.send(b"read on", 100)
    bench.wait_until(lambda: bench.values("mail"))
    bench.group.wanted[LANE] = None
    bench.run(100)
    bench.send(b"waits", 100)
    bench.group.wanted[LANE] = bench.replica.intake
    bench.run(1_000)
    stats = bench.replica.publisher.publish(bench.clock.now_ms)
    assert bench.values("mail") == [b"read on"]
    assert (stats.problems, stats.warnings) == ((), ("1 partitions of compacted sources wait",))
    bench.replica.engine.submit(lambda engine: engine.refuse(frozenset()))
    bench.run(1_000)
    assert bench.values("mail") == [b"read on", b"waits"]
    assert bench.replica.publisher.publish(bench.clock.now_ms).warnings == ()


# --- the mailbox ------------------------------------------------------------------------------------------------------


def test_a_command_is_answered_at_the_next_turn(bench: Bench) -> None:
    future = bench.replica.engine.submit(lambda engine: engine.table.version)
    assert not future.done()
    bench.step()
    assert future.result(0) == 1


def test_a_cancelled_future_harms_nobody(bench: Bench) -> None:
    ran: list[int] = []
    future = bench.replica.engine.submit(lambda _: ran.append(1))
    assert future.cancel()
    bench.step()
    assert not ran
    bench.send(b"still turning", 0)
    bench.run(20)
    assert bench.values("mail") == [b"still turning"]


def test_a_failing_command_fails_its_sender_alone(bench: Bench) -> None:
    future = bench.replica.engine.submit(lambda _: 1 // 0)
    bench.step()
    assert isinstance(future.exception(0), ZeroDivisionError)


def test_the_mailbox_is_bounded_and_so_is_a_turns_share_of_it(bench: Bench) -> None:
    futures = [bench.replica.engine.submit(lambda _: None) for _ in range(COMMANDS_MAX)]
    with pytest.raises(Full):
        bench.replica.engine.submit(lambda _: None)
    bench.step()
    assert sum(future.done() for future in futures) == COMMANDS_PER_TURN_MAX


# --- its thread -------------------------------------------------------------------------------------------------------


def test_it_turns_on_its_thread_until_it_is_stopped(bench: Bench) -> None:
    turned = threading.Event()
    engine = bench.replica.engine
    bench.send(b"one", 0)
    engine.start(FakeTime(bench.clock), lambda _: turned.set())
    assert turned.wait(10)
    engine.stop(10)
    engine.stop(10)
    assert engine.finished.is_set()
    assert engine.failure is None
    assert bench.group.members == [], "it has left the group"


def test_it_dies_loudly(bench: Bench) -> None:
    def broken(count: int) -> None:
        raise OSError("broken")

    bench.replica.intake.take = broken  # type: ignore[method-assign, assignment]
    bench.replica.engine.start(FakeTime(bench.clock), lambda _: None)
    assert bench.replica.engine.finished.wait(10)
    assert str(bench.replica.engine.failure) == "broken"


def test_stats_are_published(bench: Bench) -> None:
    bench.send(b"near", 100)
    bench.send(b"soon", 900)
    bench.send(b"far", 60_000)
    bench.run(600)
    counts = bench.replica.engine.stats.topics["reminders"]
    assert (counts.accepted, counts.emitted, counts.wheel, counts.overflow) == (3, 1, 1, 1)
    assert bench.replica.engine.stats.early == 0
    assert bench.replica.engine.stats.joined


def test_a_topic_of_which_nothing_is_held_is_published_too(bench: Bench) -> None:
    assert bench.replica.publisher.publish(bench.clock.now_ms).topics[SOURCE].accepted == 0


def test_the_overflow_keeps_what_w_has_passed_until_the_group_has_the_commit_that_says_so() -> None:
    bench = Bench()

    def down(method: str, after: bool) -> None:
        if method == "apply":
            raise OverflowUnavailable("down")

    bench.overflow.failing = down
    due_ms = bench.clock.now_ms + 3_000
    offset = bench.send(b"overtaken", 3_000)
    bench.wait_until(lambda: offset in bench.lane.promotion.skip)  # in the wheel, and on its way all the same
    bench.overflow.failing = FakeOverflow().failing
    bench.wait_until(lambda: bench.overflow.records[LANE])
    bench.replica.intake._arrive = lambda until_ms: None  # type: ignore[method-assign]
    bench.wait_until(lambda: bench.lane.promotion.watermark.due_ms > due_ms)
    bench.replica.worker.ask_to_tidy(bench.replica.lanes)
    bench.run(200)
    assert bench.clock.now_ms < due_ms
    assert bench.lane.ledger.committed_watermark.due_ms < due_ms
    bench.restart()
    bench.wait_until(lambda: bench.values("mail") == [b"overtaken"])
    bench.run(1_000)
    assert bench.replica.publisher.survey() == 0
    assert bench.lane.ledger.committed_watermark.due_ms > due_ms


def test_a_partition_without_news_repeats_its_state_before_it_expires(bench: Bench) -> None:
    bench.send(b"one", 100)
    bench.run(1_000)
    blocks = len(bench.ledger)
    bench.replica.engine.tidy()
    bench.run(500)
    assert len(bench.ledger) == blocks, "its last block is young"
    bench.clock.advance(STATE_REPEAT_MS)
    bench.step()
    bench.replica.engine.tidy()
    bench.run(500)
    assert len(bench.ledger) == blocks + 1
    state = decode_metadata(*bench.group.committed[LANE])
    assert state is not None
    assert (state.low, state.block_offset) == (1, bench.ledger[-1].offset())
    bench.replica.engine.tidy()
    bench.run(500)
    assert len(bench.ledger) == blocks + 1


def test_of_a_topic_without_a_policy_what_is_held_is_emitted_and_what_is_new_is_quarantined(bench: Bench) -> None:
    bench.send(b"held", 2_000)
    bench.run(500)
    bench.replica.engine.retire(frozenset({SOURCE}))
    bench.send(b"new", 10)
    bench.run(500)
    [odd] = bench.records(QUARANTINE)
    assert (odd.value(), dict(odd.headers() or ())["tickover-reason"]) == (b"new", b"no_policy")
    bench.restart()
    bench.replica.engine.retire(frozenset({SOURCE}))
    bench.run(3_000)
    assert bench.values("mail") == [b"held"]
    assert bench.values(QUARANTINE) == [b"new"]


@pytest.mark.parametrize("headers", [[], [(ID, b"a")], [("tickover-target", b"other")]])
def test_a_record_that_no_chunk_can_have_is_set_aside_and_what_is_beside_it_fires(
    bench: Bench, headers: Headers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of a megabyte may unpack to a gigabyte. In Redis nobody could read it back."""
    monkeypatch.setattr(decide, "RECORD_BYTES_MAX", 1_000)
    for value in (b"before", b"x" * 1_001, b"after", b"y" * 1_001):
        bench.send(value, 5_000, headers)
    bench.run(6_000)
    sent = bench.values("mail") + bench.values("other")
    assert sent == ([b"after"] if headers and headers[0][0] == ID else [b"before", b"after"])
    assert bench.values(QUARANTINE) == [None, None]
    reasons = [dict(record.headers() or ())["tickover-reason"] for record in bench.records(QUARANTINE)]
    assert reasons == [b"too_large"] * 2
    assert bench.lane.overflow_held == 0


def write_strange(bench: Bench, delay_ms: int, offset: int, name: bytes | None = None) -> None:
    """Write into Redis as a neighbour does."""
    due_ms = bench.clock.now_ms + delay_ms
    trailer: Headers = [] if name is None else [(ID, name)]
    held = Held(due_ms, offset, "mail", -1, None, b"theirs", [], "reminders@1", None, 0, -1, trailer, -1, "", 6)
    bench.overflow.apply([Change(LANE, bench.lane.acknowledged + 1, [held])], bench.clock.now_ms)


def test_a_record_in_redis_at_an_offset_that_nobody_has_read_is_passed_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A neighbour's: to settle it would end the engine, at each start."""
    bench.send(b"ours", 5_000)
    bench.wait_until(lambda: bench.lane.acknowledged)
    write_strange(bench, 3_000, 1 << 40)
    bench.run(10_000)
    assert bench.values("mail") == [b"ours"]
    assert bench.replica.tally.rebuilds == 0, "what only Redis may have is not thrown away for it"
    assert caplog.text.count("passed over") == 1
    bench.send(b"next", 500)
    bench.run(5_000)
    assert bench.values("mail") == [b"ours", b"next"]
    assert (bench.lane.overflow_held, bench.lane.imbalance) == (0, 0)


@pytest.mark.parametrize("offset", [1, 2, 1 << 40])
def test_a_control_record_finds_nothing_in_redis_at_an_offset_that_is_open(bench: Bench, offset: int) -> None:
    """To strike it out would settle what is held otherwise, or find no place for its mark."""
    bench.send(b"far", 5_000)
    bench.wait_until(lambda: bench.lane.acknowledged)
    bench.send(b"near", 1_500)
    bench.run(100)
    write_strange(bench, 60_000, offset, b"x")
    bench.send(b"", None, [(ID, b"x"), ("tickover-action", b"cancel")])
    bench.run(10_000)
    assert bench.values("mail") == [b"near", b"far"]
    outcomes = bench.replica.tally.outcomes
    assert (outcomes[SOURCE, Outcome.APPLIED], outcomes[SOURCE, Outcome.CANCELLED]) == (1, 0)
    assert bench.lane.imbalance == 0


@pytest.mark.parametrize("reads", ["before its copy is due", "after its copy was due"])
def test_without_its_ledger_what_redis_has_of_an_offset_still_to_be_read_fires_once_as_the_source_has_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    bench.send(b"acknowledged", 60_000)
    bench.wait_until(lambda: bench.group.committed.get(LANE, (0, ""))[0] == 1)
    commit = bench.group.committed[LANE]
    bench.send(b"in redis only", 30_000)
    bench.wait_until(lambda: bench.lane.acknowledged == 2)
    bench.replica.crash()
    bench.group.committed[LANE] = commit
    bench.broker.create(LEDGER.name, LEDGER.partitions)
    monkeypatch.setattr(replica, "LEDGER", replace(LEDGER, when_lost="continue"))
    if reads == "after its copy was due":
        bench.clock.advance(31_000)
    bench.replica = bench.new_replica()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(bench.replica.intake, "_read", lambda lane, count: [])
        bench.run(2_000)
    bench.wait_until(lambda: bench.lane.offsets.next == 2)
    bench.run(70_000)
    assert bench.values("mail") == [b"in redis only", b"acknowledged"]
    assert bench.replica.tally.rebuilds == 0
    assert not bench.replica.tally.lost
    assert bench.lane.imbalance == 0


@pytest.mark.parametrize("trouble", [None, str], ids=["at least once", "exactly once"])
def test_marks_behind_the_last_record_leave_no_lag(trouble: Callable[[], str] | None) -> None:
    bench = Bench(trouble=trouble)
    log = bench.broker.logs[SOURCE][0]
    bench.send(b"first", 1_900)
    log.end += 1
    bench.run(1_500)
    assert bench.lane.offsets.next == 1, "an open record is lag anyway"
    bench.wait_until(lambda: bench.group.committed.get(LANE, (0, ""))[0] == 2)
    bench.send(b"second", 10)
    bench.run(1_000)
    assert bench.values("mail") == [b"first", b"second"]
    log.end += 3
    bench.wait_until(lambda: bench.group.committed[LANE][0] == log.end)
    bench.restart()
    bench.send(b"third", 10)
    bench.run(5_000)
    assert bench.values("mail") == [b"first", b"second", b"third"]
