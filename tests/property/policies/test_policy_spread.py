"""Spreading: later by at most the tolerance, never earlier, the same whenever it is decided again."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from policies.backoff import Spread, spread_due_ms
from policies.decide import decide
from policies.decision import Dead, Decision, Facts, Hold, Quarantine
from policies.duration import DURATION_MAX_MS
from policies.explain import explain
from policies.model import Policy
from tests.unit.policy_world import DAY_MS, DELAY, NOW_MS, facts, retry_with, table

durations = st.integers(0, DURATION_MAX_MS)
identities = st.tuples(st.sampled_from(["reminders", "orders-retry"]), st.integers(0, 99), st.integers(0, 1 << 62))


@given(st.integers(0, 1 << 42), durations, durations, st.integers(-1, DURATION_MAX_MS), durations, identities)
def test_later_by_at_most_the_tolerance(
    due_ms: int, usual_ms: int, max_ms: int, asked_ms: int, room_ms: int, identity: tuple[str, int, int]
) -> None:
    spread = Spread(min(usual_ms, max_ms), max_ms)
    found = spread_due_ms(due_ms, spread, asked_ms, due_ms + room_ms, identity)
    wanted_ms = spread.usual_ms if asked_ms < 0 else asked_ms
    assert due_ms <= found <= due_ms + min(wanted_ms, max_ms, room_ms)
    assert found == spread_due_ms(due_ms, spread, asked_ms, due_ms + room_ms, identity)


def test_it_is_pinned_because_other_processes_and_versions_must_agree() -> None:
    spread = Spread(10_000, 10_000)
    found = [spread_due_ms(0, spread, -1, DAY_MS, ("orders-retry", 2, offset)) for offset in range(4)]
    assert found == [2365, 2248, 226, 7243]


def delayed(settings: dict[str, Any], /, **controls: bytes) -> Decision:
    document = {**DELAY, "delay": {**DELAY["delay"], **settings}}
    return decide(facts(**controls), table(document))


def due_of(decision: Decision) -> int:
    assert isinstance(decision, Hold)
    return decision.due_ms - NOW_MS


def test_a_herd_moves_apart_evenly() -> None:
    """100,000 messages for one instant: no second of the tolerance gets more than its share and a little."""
    asked = {"deliver_at": b"%d" % (NOW_MS + 60_000)}
    rules = table({**DELAY, "delay": {"spread": "100s"}})
    record = facts(**asked)
    dues = [decide(record._replace(offset=offset), rules) for offset in range(100_000)]
    by_second = Counter((due_of(decision) - 60_000) // 1_000 for decision in dues)
    assert sorted(by_second) in (list(range(100)), list(range(101)))
    # A standard deviation of 1,000 in 100 parts is 31, and the hash is fixed, so this never flakes.
    assert all(870 < by_second[second] < 1_130 for second in range(100))


@pytest.mark.parametrize(
    ("settings", "controls", "within"),
    [
        ({}, {}, (900_000, 900_000)),
        ({}, {"spread": b"1h"}, (900_000, 900_000)),  # the policy allows nothing
        ({"spread": "1h"}, {}, (900_001, 4_500_000)),
        ({"spread": "1h"}, {"spread": b"0"}, (900_000, 900_000)),  # exactly on time, please
        ({"spread": "1h"}, {"spread": b"5s"}, (900_000, 905_000)),
        ({"spread": "1s"}, {"spread": b"400d"}, (900_000, 901_000)),
        ({"spread_max": "1h"}, {}, (900_000, 900_000)),
        ({"spread_max": "1h"}, {"spread": b"9d"}, (905_001, 4_500_000)),
        ({"spread": "5s", "spread_max": "1h"}, {"spread": b"9d"}, (905_001, 4_500_000)),
        ({"spread": "1h"}, {"delay": b"400d"}, (400 * DAY_MS, 400 * DAY_MS)),  # never too far by it
        ({"spread": "1h"}, {"expires_at": b"%d" % (NOW_MS + 900_000)}, (900_000, 900_000)),  # nor expired
        ({"spread": "1h"}, {"deliver_at": b"%d" % (NOW_MS + 5)}, (6, 3_600_005)),
    ],
)
def test_what_policy_and_message_allow(
    settings: dict[str, Any], controls: dict[str, bytes], within: tuple[int, int]
) -> None:
    assert within[0] <= due_of(delayed(settings, **controls)) <= within[1]


def test_a_tolerance_that_is_none_is_a_bad_header() -> None:
    for raw in (b"soon", b"-1", b"\xff", b"9" * 99):
        refused = delayed({"spread": "1h"}, spread=raw)
        assert isinstance(refused, Quarantine)
        assert (refused.reason, refused.detail.partition(":")[0]) == ("bad_header", "tickover-spread")


@given(st.integers(0, 1 << 62), st.sampled_from([None, b"0", b"10s", b"30m"]))
def test_retries_are_spread_on_top_of_their_jitter_and_never_into_their_timeout(
    offset: int, asked: bytes | None
) -> None:
    plain, wide = (
        retry_with(backoff={"kind": "fixed", "delay": "10s", "jitter": "equal"}, timeout="1m", **more)
        for more in ({}, {"spread": "5s", "spread_max": "30m"})
    )
    record = facts("orders-retry", **({} if asked is None else {"spread": asked}))._replace(offset=offset)
    before, after = (due_of(decide(record, table(document))) for document in (plain, wide))
    tolerance_ms = {None: 5_000, b"0": 0, b"10s": 10_000, b"30m": 60_000 - before}[asked]
    assert before <= after <= before + tolerance_ms <= 60_000
    late = record._replace(controls={**record.controls, "tickover-first-failure": b"%d" % (NOW_MS - 60_000)})
    assert isinstance(decide(late, table(wide)), Dead)


def test_explain_shows_what_spreading_may_add() -> None:
    document = retry_with(backoff={"kind": "fixed", "delay": "10s"}, spread="5s")
    first, second = explain(facts("orders-retry"), table(document)).schedule[:2]
    assert 10_000 <= first.delay_min_ms == first.delay_max_ms <= 15_000
    assert (second.delay_min_ms, second.delay_max_ms) == (10_000, 15_000)


@pytest.mark.parametrize("part", ["delay", "retry"])
def test_a_spread_beyond_what_a_message_may_ask_for_is_refused(part: str) -> None:
    limits = {"spread": "2s", "spread_max": "1s"}
    document = retry_with(**limits) if part == "retry" else {**DELAY, "delay": limits}
    with pytest.raises(ValidationError, match="spread cannot be longer than spread_max"):
        Policy.model_validate(document)


def test_two_records_of_one_instant_are_told_apart_by_their_place() -> None:
    rules = table({**DELAY, "delay": {"spread": "1h"}})
    places = [Facts("reminders", partition, offset, NOW_MS, [], {}) for partition in range(3) for offset in range(3)]
    with_delay = [record._replace(controls={"tickover-delay": b"1s"}) for record in places]
    assert len({due_of(decide(record, rules)) for record in with_delay}) == len(places)
