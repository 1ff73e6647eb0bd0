from sidecar.engine.counters import LATENESS_FINE_MS, EngineCounters
from sidecar.model.record import Outcome
from sidecar.model.stats import LATENESS_BOUNDS_MS, lateness_bucket
from tests.unit.lookup.test_receipts import settled


def test_settled_records_are_counted_by_outcome_and_reason() -> None:
    tally = EngineCounters()
    reasons = {2: "expired", 3: "timeout"}
    tally.settled("t", settled({1: Outcome.EMITTED, 2: Outcome.DEAD, 3: Outcome.DEAD})._replace(reasons=reasons))
    tally.settled("t", settled({9: Outcome.QUARANTINED})._replace(reasons={9: "loop"}))
    tally.accepted["t"] = 5
    assert sum(tally.outcomes["t", outcome] for outcome in Outcome) == 4
    assert tally.by_reason(Outcome.DEAD) == {("t", "expired"): 1, ("t", "timeout"): 1}
    assert tally.by_reason(Outcome.QUARANTINED) == {("t", "loop"): 1}
    counts = tally.topic_counts("t", wheel=1, overflow=2, parked=0)
    assert (counts.accepted, counts.emitted, counts.dead, counts.quarantined) == (5, 1, 2, 1)
    assert (counts.wheel, counts.overflow) == (1, 2)


def test_control_records_that_found_nothing_are_counted_apart() -> None:
    tally = EngineCounters()
    rows = {1: Outcome.CANCELLED, 2: Outcome.APPLIED, 3: Outcome.APPLIED, 4: Outcome.MOVED}
    tally.settled("t", settled(rows)._replace(related={1: 2, 2: 1, 4: 5}))
    counts = tally.topic_counts("t", wheel=0, overflow=0, parked=0)
    assert (counts.applied, counts.not_found) == (3, 1)


def test_lateness_is_published_in_its_bounds() -> None:
    tally = EngineCounters()
    now_ms = 1_700_000_000_000
    tally.handed_over(now_ms, [now_ms - 25, *[now_ms] * 10, now_ms - 26, *[now_ms - 25] * 2])
    tally.handed_over(now_ms, (now_ms - LATENESS_FINE_MS - 1,) * 2)
    lateness = tally.lateness()
    assert sum(lateness.counts) == 16
    assert lateness.counts[LATENESS_BOUNDS_MS.index(25)] == 3
    assert lateness.counts[LATENESS_BOUNDS_MS.index(40)] == 1
    assert lateness.max_ms == LATENESS_FINE_MS + 1
    assert lateness.sum_ms == 25 * 3 + 26 + 2 * (LATENESS_FINE_MS + 1)
    assert (lateness.percentile(0.5), lateness.percentile(0.8)) == (1.0, 25.0)


def test_each_edge_of_a_bound_is_in_the_bucket_that_says_so() -> None:
    for late_ms in (0, *LATENESS_BOUNDS_MS, *(bound + 1 for bound in LATENESS_BOUNDS_MS)):
        tally = EngineCounters()
        tally.handed_over(late_ms, [0, 0, 0])
        lateness = tally.lateness()
        assert [place for place, count in enumerate(lateness.counts) if count] == [lateness_bucket(late_ms)]
        assert (sum(lateness.counts), lateness.max_ms) == (3, late_ms)


def test_early_is_counted_as_such_and_as_not_late() -> None:
    tally = EngineCounters()
    tally.handed_over(9, [10, 10, 4])
    assert tally.early == 2
    assert sum(tally.lateness().counts) == 3
    assert (tally.lateness().sum_ms, tally.lateness().max_ms) == (5, 5)


def test_nothing_is_counted_of_a_topic_that_is_forgotten() -> None:
    tally = EngineCounters()
    for topic in ("a", "deleted"):
        for counts in (tally.accepted, tally.not_found, tally.rebuilt):
            counts[topic] += 1
        tally.outcomes[topic, Outcome.DEAD] += 1
        tally.reasons[topic, Outcome.DEAD, "expired"] += 1
        tally.lost[topic, "source"] += 1
    tally.forget({"deleted"})
    assert [set(counts) for counts in (tally.accepted, tally.not_found, tally.rebuilt)] == [{"a"}] * 3
    assert (set(tally.outcomes), set(tally.lost)) == ({("a", Outcome.DEAD)}, {("a", "source")})
    assert (tally.by_reason(Outcome.DEAD), tally.topic_counts("a", 0, 0, 0).dead) == ({("a", "expired"): 1}, 1)
