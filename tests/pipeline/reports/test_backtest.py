"""`backtest` asks the live decision, and follows each message through its failures."""

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.reports.facts import facts_of
from policies.decide import decide
from policies.decision import Facts
from sidecar.model.header_codec import split
from sidecar.model.record import Outcome
from tests.integration.hostile_records import POLICIES as HOSTILE_POLICIES
from tests.integration.hostile_records import REFUSED, REFUSED_RETRY
from tests.pipeline.ledger_rows import NOW_MS, block, ledger_frame, settled

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

RETRY = """
name: orders-retry
match: {{topics: ["orders-retry"]}}
retry: {{attempts: {attempts}, backoff: {{kind: fixed, delay: {delay}}}, give_up_on: ["{give_up_on}"]}}
"""
LIVE = RETRY.format(attempts=3, delay="10s", give_up_on="*.Fatal")
HASTY = RETRY.format(attempts=1, delay="1s", give_up_on="nothing")
S = 1_000


def failure(offset: int, at_ms: int, attempt: int = 1, origin: int | None = None, error: str = "shop.Timeout"):
    """A record of the retry topic: attempt `attempt` of the message that began at offset `origin` failed."""
    headers = [("tickover-error-class", error), ("tenant", "gold")]
    if origin is not None:
        headers += [("tickover-attempt", str(attempt)), ("tickover-origin", f"orders-retry/3/{origin}")]
    pairs = [(name, bytearray(text.encode())) for name, text in headers]
    return ("orders-retry", 3, offset, NOW_MS + at_ms, None, None, pairs)


# Message 0 fails twice and is rescued by its third delivery; 3 is given up at once; 4 uses its attempts up.
FAILURES = [
    failure(0, 0),
    failure(1, 15 * S, 2, 0),  # 10 s of waiting, 5 s until it failed again
    failure(3, 0, error="shop.Fatal"),
    failure(4, 2 * S),
    failure(5, 13 * S, 2, 4),
    failure(6, 24 * S, 3, 4),
    failure(7, 35 * S, 4, 4),
]
SETTLED: list[tuple[int, int, Outcome, int]] = [
    (0, 10 * S, Outcome.EMITTED, 2),
    (1, 25 * S, Outcome.EMITTED, 3),
    (3, 0, Outcome.DEAD, 1),
    (4, 12 * S, Outcome.EMITTED, 2),
    (5, 23 * S, Outcome.EMITTED, 3),
    (6, 34 * S, Outcome.EMITTED, 4),
    (7, 35 * S, Outcome.DEAD, 4),
]


def replay(spark, files: dict[str, str], more: Sequence[Any] = ()):
    from pipeline.ingest.ledger import settlements
    from pipeline.ingest.topics import RECORDS
    from pipeline.reports.backtest import decisions, failures, replayed

    records = spark.createDataFrame([*FAILURES, *more], RECORDS)
    rows = settled([(offset, NOW_MS + due_ms, outcome, attempt) for offset, due_ms, outcome, attempt in SETTLED])
    live = settlements(ledger_frame(spark, [block(settled=rows)]))
    return replayed(failures(records, live), decisions(records, files))


def test_the_same_policies_repeat_what_was(spark) -> None:
    rows = {row.offset: row for row in replay(spark, {"live": LIVE}).collect()}
    words = {"hold": "emitted", "dead": "dead"}
    assert {offset: words[row.decision] for offset, row in rows.items()} == {
        offset: outcome.name.lower() for offset, _, outcome, _ in SETTLED
    }
    assert {offset: row.due_ms - NOW_MS for offset, row in rows.items()} == {one[0]: one[1] for one in SETTLED}
    assert all(row.at_ms == row.timestamp_ms and row.reached for row in rows.values())


def test_policies_are_compared_side_by_side(spark) -> None:
    from pipeline.reports.backtest import comparison

    live, hasty = sorted(
        comparison(replay(spark, {"live": LIVE, "hasty": HASTY})).collect(), key=lambda row: -row.deliveries
    )
    assert (live.policies, live.messages, live.deliveries, live.rescued, live.dead) == ("live", 3, 5, 1, 2)
    assert (live.unknown, live.quarantined, live.to_success_ms) == (0, 0, [25 * S] * 3)
    # One delivery per message, then it is given up: what rescued message 0 is never tried. What would have become of
    # message 3, which nobody retried, is unknown.
    assert (hasty.policies, hasty.messages, hasty.deliveries, hasty.rescued, hasty.dead) == ("hasty", 3, 3, 0, 2)
    assert (hasty.unknown, hasty.to_success_ms, hasty.rescue_share) == (1, None, 0.0)


def test_a_control_record_is_no_message_with_a_failure(spark) -> None:
    from pipeline.reports.backtest import comparison, load

    def control(offset: int, action: bytes | None):
        headers = [("tickover-id", bytearray(b"x")), ("tickover-action", action and bytearray(action))]
        return ("orders-retry", 3, offset, NOW_MS + 40 * S, None, None, headers)

    actions = (b"cancel", b"reschedule", b"fire", b"nonsense", None)  # the last two are quarantined, as control records
    some = replay(spark, {"live": LIVE}, [control(20 + n, action) for n, action in enumerate(actions)])
    none = replay(spark, {"live": LIVE})
    assert comparison(some).collect() == comparison(none).collect()
    assert load(some).collect() == load(none).collect()


def test_a_shorter_wait_moves_what_follows(spark) -> None:
    from pipeline.reports.backtest import load

    quick = RETRY.format(attempts=3, delay="1s", give_up_on="*.Fatal")
    rows = replay(spark, {"quick": quick})
    times = {row.offset: (row.at_ms - NOW_MS, row.fires_ms and row.fires_ms - NOW_MS) for row in rows.collect()}
    assert times[0] == (0, 1 * S)
    assert times[1] == (6 * S, 7 * S)  # the consumer takes its 5 s all the same
    assert times[4] == (2 * S, 3 * S)
    assert times[5] == (4 * S, 5 * S)
    assert sum(row.deliveries for row in load(rows).collect()) == 5


@pytest.mark.parametrize(("late_ms", "same"), [(0, 7), (1, 6)])
def test_decisions_are_compared_and_not_ends(spark, late_ms: int, same: int) -> None:
    from pipeline.ingest.ledger import settlements
    from pipeline.ingest.topics import RECORDS
    from pipeline.reports.backtest import agreement, decisions

    # The first was held, and expired before it was emitted; the last but one was due later than by these policies.
    ends = [(0, 10 * S, Outcome.DEAD, 2), *SETTLED[1:5], (6, 34 * S + late_ms, Outcome.EMITTED, 4), SETTLED[6]]
    rows = settled(
        [(offset, NOW_MS + due_ms, outcome, attempt) for offset, due_ms, outcome, attempt in ends],
        reasons={0: "expired", 3: "not_retryable", 7: "attempts_exhausted"},
    )
    rows = rows._replace(targets=["orders" if end[2] is Outcome.EMITTED else "orders-dlq" for end in ends])
    live = settlements(ledger_frame(spark, [block(settled=rows)]))
    [row] = agreement(decisions(spark.createDataFrame(FAILURES, RECORDS), {"live": LIVE}), live).collect()
    assert (row.recorded, row.same) == (7, same)


def test_decisions_are_the_live_engines(spark) -> None:
    from pipeline.ingest.topics import RECORDS
    from pipeline.reports.backtest import decisions, policy_table, told

    corpus = [("~strict", headers) for headers, _, _ in REFUSED.values()]
    corpus += [("~work-retry", headers) for headers, _, _ in REFUSED_RETRY.values()]
    corpus += [("~conditional", [("tenant", b"gold")]), ("~conditional", []), ("~nobody", [])]
    places = [(topic.replace("~", "s-"), 0, offset) for offset, (topic, _) in enumerate(corpus)]
    pairs = [[(name, value and value.replace(b"~", b"s-")) for name, value in headers] for _, headers in corpus]
    text = HOSTILE_POLICIES.replace("~", "s-")
    rows = [
        (*place, NOW_MS, None, None, [(name, value if value is None else bytearray(value)) for name, value in headers])
        for place, headers in zip(places, pairs, strict=True)
    ]
    found = decisions(spark.createDataFrame(rows, RECORDS), {"one": text}).orderBy("offset").collect()
    table = policy_table(text, "one")
    for row, place, headers in zip(found, places, pairs, strict=True):
        by_engine = split(list(headers))
        live = told(decide(Facts(*place, NOW_MS, by_engine.user, by_engine.controls), table))
        assert (row.decision, row.due_ms, row.target, row.policy, row.attempt, row.reason) == live, place
    assert {row.decision for row in found} == {"hold", "dead", "quarantine"}


def test_facts_keep_what_is_not_ours() -> None:
    facts = facts_of(("t", 0, 1), -1, [("tickover-due", b"1"), ("x", None), ("tickover-id", b"a")])
    assert (facts.headers, facts.controls) == ([("x", None)], {"tickover-id": b"a"})


def test_a_file_that_is_no_policies_file_is_an_error_at_once(spark) -> None:
    from pipeline.ingest.topics import RECORDS
    from pipeline.reports.backtest import decisions
    from policies.errors import PolicyFileError

    records: Any = spark.createDataFrame(FAILURES, RECORDS)
    with pytest.raises(PolicyFileError):
        decisions(records, {"bad": "name: [1]"})
