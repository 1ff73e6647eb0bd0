"""The circuit breaker: its states on a clock set by hand, seeded histories, and what the engine makes of it."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from policies.model import Policy, Versioned
from policies.table import BreakerRule, PolicyTable, is_limiting, limits_of
from sidecar.engine.emission.circuit_breaker import ALL, LONGER_MAX, CircuitBreaker, State
from sidecar.model.condition import Switch
from sidecar.model.record import Outcome
from tests.unit.engine_bench import SOURCE, Bench

RULE = BreakerRule(0.5, 20, 60_000, 30_000, 5)
GUARANTEES = pytest.mark.parametrize("trouble", [None, str], ids=["at_least_once", "exactly_once"])


def state(breaker: CircuitBreaker) -> State:
    return breaker.state  # asked by a function: the type checker takes no answer for the next one


def broken(now_ms: int = 0) -> CircuitBreaker:
    breaker = CircuitBreaker(RULE)
    breaker.emitted(20, now_ms)
    for _ in range(10):
        breaker.failed(now_ms)
    assert state(breaker) is State.OPEN
    return breaker


@pytest.mark.parametrize(
    ("emitted", "failed", "opens"), [(20, 9, False), (20, 10, True), (19, 19, False), (0, 19, False), (0, 20, True)]
)
def test_it_opens_at_its_share_of_at_least_its_minimum(emitted: int, failed: int, opens: bool) -> None:
    breaker = CircuitBreaker(RULE)
    breaker.emitted(emitted, 0)
    for _ in range(failed):
        breaker.failed(1)
    assert (state(breaker) is State.OPEN) == opens
    assert breaker.allowed(2) == (0 if opens else ALL)


def test_what_lies_before_the_window_counts_no_more() -> None:
    breaker = CircuitBreaker(RULE)
    for at_ms in range(0, 600_000, 7_000):  # one a window slot or so: never 20 within a minute
        breaker.emitted(1, at_ms)
        breaker.failed(at_ms)
    assert state(breaker) is State.CLOSED


def test_probes_that_stay_away_close_it_and_it_ramps_up() -> None:
    breaker = broken()
    assert breaker.allowed(29_999) == 0
    assert breaker.allowed(30_000) == 5
    assert state(breaker) is State.HALF_OPEN
    breaker.emitted(3, 30_000)
    assert breaker.allowed(31_000) == 2
    breaker.emitted(2, 31_000)
    breaker.failed(32_000)
    assert breaker.allowed(60_999) == 0, "the probes have until now"
    allowed = []
    for second in range(12):
        some = breaker.allowed(61_000 + second * 1_000)
        allowed.append(some)
        breaker.emitted(min(some, 100_000), 61_000 + second * 1_000)
    assert state(breaker) is State.CLOSED
    assert allowed == [10 << step for step in range(10)] + [ALL, ALL]


def test_probes_that_come_back_open_it_for_longer_and_longer_up_to_a_limit() -> None:
    breaker, now_ms, waits = broken(), 0, []
    for _ in range(6):
        began_ms = now_ms
        while not breaker.allowed(now_ms):
            now_ms += 1_000
        waits.append((now_ms - began_ms) // 30_000)
        breaker.emitted(breaker.allowed(now_ms), now_ms)
        for _ in range(3):
            breaker.failed(now_ms)
        assert state(breaker) is State.OPEN
    assert waits == [1, 2, 4, 8, LONGER_MAX, LONGER_MAX]


def test_one_that_is_tried_by_hand_lets_its_probes_go_at_once_and_is_judged_as_ever() -> None:
    for comes_back in (True, False):
        breaker = broken()
        breaker.try_now(1_000)
        assert (state(breaker), breaker.allowed(1_000)) == (State.HALF_OPEN, 5)
        breaker.emitted(5, 1_000)
        for _ in range(3 * comes_back):
            breaker.failed(1_500)
        breaker.pass_time(31_000)
        assert state(breaker) is (State.OPEN if comes_back else State.CLOSED)


def test_one_that_is_not_open_stays_as_it_is() -> None:
    closed, half_open = CircuitBreaker(RULE), broken()
    closed.try_now(5)
    assert (state(closed), closed.allowed(6)) == (State.CLOSED, ALL)
    half_open.try_now(5)
    half_open.emitted(4, 6)
    half_open.try_now(7)
    assert half_open.allowed(8) == 1, "its probes don't begin again"


def test_one_that_is_opened_by_hand_waits_as_if_too_many_had_failed_and_is_judged_as_ever() -> None:
    for comes_back in (True, False):
        breaker = CircuitBreaker(RULE)
        breaker.emitted(19, 500)
        breaker.open_now(1_000)
        assert (state(breaker), breaker.allowed(30_999), breaker.allowed(31_000)) == (State.OPEN, 0, 5)
        breaker.emitted(5, 31_000)
        for _ in range(3 * comes_back):
            breaker.failed(32_000)
        breaker.pass_time(61_000)
        assert state(breaker) is (State.OPEN if comes_back else State.CLOSED)


def test_one_that_is_open_begins_its_time_anew_and_no_longer_one() -> None:
    breaker = broken()
    for at_ms in (10_000, 20_000):
        breaker.open_now(at_ms)
    assert (breaker.allowed(49_999), breaker.allowed(50_000)) == (0, 5)


@pytest.mark.parametrize("opened_at_ms", [30_500, 60_500], ids=["half open", "ramping up"])
def test_one_that_is_tried_is_opened_for_longer(opened_at_ms: int) -> None:
    breaker = broken()
    breaker.allowed(30_000)
    breaker.emitted(5, 30_000)
    breaker.pass_time(60_000)
    if opened_at_ms < 60_000:
        breaker = broken()
        breaker.allowed(30_000)
        breaker.emitted(5, 30_000)
        breaker.failed(30_200)
    breaker.open_now(opened_at_ms)
    assert (breaker.allowed(opened_at_ms + 59_999), breaker.allowed(opened_at_ms + 60_000)) == (0, 5)
    breaker.emitted(5, opened_at_ms + 60_000)
    breaker.failed(opened_at_ms + 60_500)
    breaker.failed(opened_at_ms + 60_600)
    assert state(breaker) is State.HALF_OPEN, "what failed of the probes before doesn't count"


def test_few_probes_are_judged_by_their_own_number() -> None:
    breaker = broken()
    breaker.allowed(30_000)
    breaker.emitted(2, 30_000)
    breaker.failed(30_500)
    breaker.failed(30_600)
    assert state(breaker) is State.HALF_OPEN, "two of five"
    assert breaker.allowed(60_000) == 0
    assert state(breaker) is State.OPEN, "two of two"


def test_without_a_probe_there_is_no_verdict() -> None:
    breaker = broken()
    assert breaker.allowed(10_000_000) == 5
    for _ in range(5):
        breaker.failed(15_000_000)
    assert breaker.allowed(20_000_000) == 5
    assert state(breaker) is State.HALF_OPEN


@pytest.mark.parametrize("seed", range(6))
def test_a_sick_target_gets_few_and_a_well_one_all(seed: int) -> None:
    """Turns of being well and sick, failures that come back after a while, a clock that now and then goes back."""
    rng, breaker, now_ms = Random(seed), CircuitBreaker(RULE), 1_000_000
    for turn in range(5):
        is_sick, end_ms = turn % 2 == 1, now_ms + 600_000
        returning: list[int] = []
        sent: list[tuple[int, int]] = []
        while now_ms < end_ms:
            now_ms += rng.choice((20, 100, 500, -30))
            while returning and returning[0] <= now_ms:
                returning.pop(0)
                breaker.failed(now_ms)
            count = min(rng.randint(0, 10), breaker.allowed(now_ms))
            assert count >= 0
            breaker.emitted(count, now_ms)
            sent.append((now_ms, count))
            if is_sick:
                returning += [now_ms + 400] * count
        last = sum(count for at_ms, count in sent if at_ms > end_ms - 300_000)
        if is_sick:
            assert last <= 5 * 11, f"seed {seed}: {last} in five minutes"
        else:
            assert state(breaker) is State.CLOSED
            assert breaker.allowed(now_ms) == ALL
            assert last > 1_000


# --- in the engine ----------------------------------------------------------------------------------------------------


def rules(**retry: Any) -> PolicyTable:
    policy = Policy.model_validate(
        {
            "name": "retries",
            "match": {"topics": [SOURCE]},
            "retry": {
                "attempts": 1_000,
                "backoff": {"kind": "fixed", "delay": "500ms"},
                "breaker": {"window": "10s", "minimum": 10, "open": "5s", "probes": 2},
                **retry,
            },
            "target": {"topic": "mail"},
        }
    )
    return PolicyTable(9, {"retries": Versioned(policy, 9, "me", 0, "api")})


class Consumer:
    """Reads `mail`; what it can't handle goes to the retry path, as it came."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.is_sick = True
        self.handled: list[bytes | None] = []
        self._read = 0

    def run(self, ms: int) -> None:
        for _ in range(ms // 50):
            self.bench.step(25)
            self.bench.step(25)
            new = self.bench.records("mail")[self._read :]
            self._read += len(new)
            for record in new:
                kept = [header for header in record.headers() or [] if header[0] != "tickover-due"]
                if self.is_sick:
                    self.bench.send(record.value(), None, kept)
                else:
                    self.handled.append(record.value())


def retrying(trouble: Callable[[], str] | None) -> tuple[Bench, Consumer]:
    bench = Bench(trouble=trouble)
    bench.tables[9] = bench.replica.engine.table = rules()
    bench.run(100)
    for number in range(20):
        bench.send(b"%d" % number)
    return bench, Consumer(bench)


@GUARANTEES
def test_retries_wait_while_their_target_is_sick_and_all_arrive_when_it_is_well(
    trouble: Callable[[], str] | None,
) -> None:
    bench, consumer = retrying(trouble)
    consumer.run(3_000)
    flow = bench.replica.publisher.publish(bench.clock.now_ms).targets["mail"]
    assert (flow.breaker, flow.waiting) == ("open", 20)
    before = len(bench.values("mail"))
    consumer.run(20_000)
    assert len(bench.values("mail")) - before <= 2 * 5, "without a breaker some 800"
    consumer.is_sick = False
    consumer.run(60_000)
    assert sorted(consumer.handled, key=str) == sorted((b"%d" % number for number in range(20)), key=str)
    flow = bench.replica.publisher.publish(bench.clock.now_ms).targets["mail"]
    assert (flow.breaker, flow.waiting) == ("closed", 0)
    emitter = bench.replica.emitter
    assert (emitter.backlog, emitter.load.records, emitter.load.bytes) == (0, 0, 0)
    assert bench.replica.publisher.survey() == 0
    assert bench.replica.tally.outcomes[SOURCE, Outcome.EMITTED] == len(bench.values("mail"))


def test_its_state_moves_on_while_no_retry_waits() -> None:
    bench, consumer = retrying(None)
    consumer.is_sick = False
    consumer.run(2_000)

    def shown(after_ms: int) -> str:
        bench.run(after_ms)
        return bench.replica.engine.stats.targets["mail"].breaker

    for _ in range(40):
        bench.replica.emitter.gate.failed("mail", bench.clock.now_ms)
    assert shown(4_000) == "open"
    assert shown(1_500) == shown(60_000) == "half_open", "there was no probe yet"
    bench.send(b"probe", None, [("tickover-attempt", b"2")])
    assert shown(2_000) == "half_open"
    assert shown(5_000) == "closed"


def test_first_failures_and_old_news_say_nothing_about_it() -> None:
    bench, consumer = retrying(None)
    consumer.is_sick = False
    consumer.run(2_000)
    gate = bench.replica.emitter.gate
    assert gate.flows()["mail"].breaker == "closed"
    for _ in range(60):
        bench.send(b"first", None, [("tickover-attempt", b"1")])
    consumer.run(300)
    assert gate.flows()["mail"].breaker == "closed"
    for _ in range(40):
        gate.failed("mail", bench.clock.now_ms - 11_000)
        gate.failed("unheard-of", bench.clock.now_ms)
    assert gate.flows()["mail"].breaker == "closed"


def test_what_is_read_again_after_a_crash_is_not_counted_again() -> None:
    bench, consumer = retrying(None)
    consumer.is_sick = False
    consumer.run(2_000)
    states = []
    for until in (bench.lane.offsets.next + 60, -1):
        bench.lane.recovered_until = until
        for _ in range(60):
            bench.send(b"came back", None, [("tickover-attempt", b"2")])
        consumer.run(300)
        states.append(bench.replica.emitter.gate.flows()["mail"].breaker)
    assert states == ["closed", "open"]


def test_the_breaker_that_is_easiest_to_break_counts() -> None:
    table = rules()
    assert is_limiting(table)
    careful = Policy.model_validate(
        {
            "name": "careful",
            "match": {"topics": ["other-retry"]},
            "retry": {"attempts": 1, "backoff": {"kind": "fixed", "delay": 1}, "breaker": {"failures": "10%"}},
            "target": {"allow": ["mail"]},
        }
    )
    both = PolicyTable(9, {**table.policies, "careful": Versioned(careful, 1, "me", 0, "api")})
    assert limits_of("mail", {SOURCE: 1}, both).breaker == BreakerRule(0.5, 10, 10_000, 5_000, 2)
    assert limits_of("mail", {SOURCE: 1, "other-retry": 1}, both).breaker == BreakerRule(0.1, 20, 60_000, 30_000, 5)


@pytest.mark.parametrize("failures", ["0%", "101%", "50", 50, 0.5, None, "x%"])
def test_a_share_is_a_percentage(failures: object) -> None:
    with pytest.raises(ValueError, match=r"percent|less than or equal|greater than or equal"):
        rules(breaker={"failures": failures})


@GUARANTEES
def test_a_breaker_that_somebody_closes_lets_retries_go_at_once_and_each_closing_counts_once(
    trouble: Callable[[], str] | None,
) -> None:
    bench, consumer = retrying(trouble)
    engine, seen = bench.replica.engine, bench.values
    consumer.run(3_000)
    engine.switches = {"mail": Switch(False, 1), "unheard-of": Switch(False, 2)}  # by a clock that is far behind
    before = len(seen("mail"))
    consumer.run(200)
    assert len(seen("mail")) - before == 2, "the probes of a breaker that had been open for seconds yet"
    consumer.run(500)
    engine.switches = {"mail": Switch(False, 1), "unheard-of": Switch(False, 3)}
    consumer.run(3_000)
    assert len(seen("mail")) - before == 2, "somebody else's"
    consumer.is_sick = False
    engine.switches = {"mail": Switch(False, 4)}
    consumer.run(12_000)
    assert sorted(consumer.handled, key=str) == sorted((b"%d" % number for number in range(20)), key=str)


def opened(bench: Bench, at_ms: int) -> None:
    bench.replica.engine.switches = {"mail": Switch(True, at_ms)}


def shown(bench: Bench) -> tuple[str, int]:
    flow = bench.replica.publisher.publish(bench.clock.now_ms).targets["mail"]
    return flow.breaker, flow.waiting


@GUARANTEES
def test_a_breaker_that_somebody_opens_holds_retries_up_and_closes_by_itself_and_nothing_is_lost(
    trouble: Callable[[], str] | None,
) -> None:
    bench, consumer = retrying(trouble)
    consumer.is_sick = False
    consumer.run(2_000)
    before = len(bench.values("mail"))
    opened(bench, 1)  # by a clock that is far behind
    bench.run(100)
    expected = [b"%d" % number for number in range(20, 50)]
    for value in expected:
        bench.send(value)
        bench.run(20)
    consumer.run(4_000)
    assert (shown(bench), bench.values("mail")[before:]) == (("open", 30), [])
    consumer.run(1_000)
    assert (shown(bench), bench.values("mail")[before:]) == (("half_open", 28), expected[:2])
    consumer.run(15_000)
    assert (shown(bench), bench.values("mail")[before:]) == (("closed", 0), expected), "in order of due, each once"
    assert bench.replica.publisher.survey() == 0
    assert (bench.replica.emitter.backlog, bench.replica.emitter.load.records) == (0, 0)


@GUARANTEES
def test_a_breaker_that_is_opened_before_anything_went_to_its_target_holds_up_the_first_retry(
    trouble: Callable[[], str] | None,
) -> None:
    bench = Bench(trouble=trouble)
    bench.tables[9] = bench.replica.engine.table = rules()
    bench.run(100)
    opened(bench, 1)
    bench.run(100)
    bench.send(b"retry")
    bench.run(3_000)
    assert (shown(bench), bench.values("mail")) == (("open", 1), [])
    bench.run(2_500)
    assert bench.values("mail") == [b"retry"]


def test_each_opening_counts_once_and_the_last_switch_is_what_is_done() -> None:
    bench, consumer = retrying(None)
    consumer.is_sick = False
    consumer.run(2_000)
    opened(bench, 1)
    consumer.run(6_000)
    assert shown(bench) == ("half_open", 0)
    opened(bench, 1)
    bench.replica.engine.switches = {**bench.replica.engine.switches, "unheard-of": Switch(True, 2)}
    consumer.run(500)
    assert shown(bench) == ("half_open", 0), "that opening was done"
    opened(bench, 2)
    consumer.run(500)
    assert shown(bench) == ("open", 0)
    bench.replica.engine.switches = {"mail": Switch(False, 3)}
    consumer.run(500)
    assert shown(bench) == ("half_open", 0)


def test_what_was_switched_before_a_process_began_does_nothing() -> None:
    bench, _ = retrying(None)
    bench.replica.crash()
    bench.replica = bench.new_replica()
    opened(bench, 1)
    bench.run(2_000)
    assert shown(bench) == ("closed", 0)
    opened(bench, 2)
    bench.run(100)
    assert shown(bench) == ("open", 0)
