"""Decisions of a delay policy on records: row by row."""

import pytest

from policies.decide import decide
from policies.decision import REPEATED, Control, Dead, Hold, Quarantine
from tests.unit.policy_world import DAY_MS, DELAY, NOW_MS, facts, table


def held(**controls: Control) -> Hold:
    decision = decide(facts(**controls), table(DELAY))
    assert isinstance(decision, Hold), decision
    return decision


def test_a_delay_policy_holds_for_its_default_with_its_default_target() -> None:
    assert held() == Hold(NOW_MS + 900_000, "push", -1, "reminders@3", 0, -1, -1, "reminders-dlq", None)


def test_headers_win_over_defaults() -> None:
    assert held(delay=b"90s", target=b"mail-a", target_partition=b"7", id=b"x", expires_at=b"1700000090000") == Hold(
        NOW_MS + 90_000, "mail-a", 7, "reminders@3", 0, -1, NOW_MS + 90_000, "reminders-dlq", "x"
    )


@pytest.mark.parametrize(
    ("controls", "due_ms"),
    [
        ({"deliver_at": b"1700000005000"}, NOW_MS + 5_000),
        ({"deliver_at": b"2023-11-14T22:13:25Z"}, NOW_MS + 5_000),
        ({"deliver_at": b"1700000005000", "delay": b"1h"}, NOW_MS + 5_000),
        ({"deliver_at": b"100000000000"}, 100_000_000_000),  # overdue means now
        ({"delay": b"0"}, NOW_MS),
        ({"delay": b"0.1ms"}, NOW_MS + 1),
        ({"delay": b"400d"}, NOW_MS + 400 * DAY_MS),
    ],
)
def test_due_is_the_time_asked_for(controls: dict[str, Control], due_ms: int) -> None:
    assert held(**controls).due_ms == due_ms


@pytest.mark.parametrize(
    ("controls", "reason"),
    [
        ({"delay": b"-1s"}, "bad_header"),
        ({"delay": b"nan"}, "bad_header"),
        ({"delay": b"9" * 5_000}, "bad_header"),
        ({"delay": b""}, "bad_header"),
        ({"delay": b"\xff"}, "bad_header"),
        ({"delay": b"\xff" * 100}, "bad_header"),
        ({"delay": None}, "bad_header"),
        ({"delay": REPEATED}, "bad_header"),
        ({"delay": b"1ms400d"}, "bad_header"),
        ({"delay": b"400d1ms"}, "too_far"),
        ({"delay": b"34560000001"}, "too_far"),
        ({"delay": b"3651d"}, "too_far"),
        ({"delay": b"9" * 13}, "too_far"),
        ({"delay": b"253402300800000"}, "bad_header"),
        ({"deliver_at": str(NOW_MS + 400 * DAY_MS + 1).encode()}, "too_far"),
        ({"deliver_at": b"2023-11-14T22:13:25"}, "bad_header"),
        ({"deliver_at": b"1700000005"}, "bad_header"),
        ({"expires_at": b"1700000005"}, "bad_header"),
        ({"deliver_at": b"1700000005000.5"}, "bad_header"),
        ({"deliver_at": None}, "bad_header"),
        ({"deliver_at": REPEATED}, "bad_header"),
        ({"deliver_at": b"1700000005000", "delay": b"soon"}, "bad_header"),
        ({"deliver_at": b"soon", "delay": b"1s"}, "bad_header"),
        ({"target": b""}, "bad_header"),
        ({"target": b"a b"}, "bad_header"),
        ({"target": b"\xff"}, "bad_header"),
        ({"target": None}, "bad_header"),
        ({"target": REPEATED}, "bad_header"),
        ({"target": b"other"}, "target_not_allowed"),
        ({"target": b"Mail-a"}, "target_not_allowed"),
        ({"target": b"reminders"}, "loop"),
        ({"target_partition": b"-1"}, "bad_header"),
        ({"target_partition": b"2147483648"}, "bad_header"),
        ({"target_partition": b"9" * 5_000}, "bad_header"),
        ({"target_partition": "٣".encode()}, "bad_header"),
        ({"target_partition": b""}, "bad_header"),
        ({"id": b""}, "bad_header"),
        ({"id": None}, "bad_header"),
        ({"id": REPEATED}, "bad_header"),
        ({"id": b"\xff"}, "bad_header"),
        ({"id": b"i" * 1_025}, "bad_header"),
        ({"expires_at": b"-1"}, "bad_header"),
        ({"expires_at": b"2023-11-14T22:13:25"}, "bad_header"),
        ({"action": b"cancel"}, "bad_header"),
        ({"action": b"explode", "id": b"x"}, "bad_header"),
        ({"action": None, "id": b"x"}, "bad_header"),
        ({"action": REPEATED, "id": b"x"}, "bad_header"),
        ({"action": b"reschedule", "id": b"x"}, "bad_header"),
        ({"action": b"reschedule", "id": b"x", "delay": b"500d"}, "too_far"),
        ({"action": b"reschedule", "id": b"x", "delay": b"-1"}, "bad_header"),
        ({"action": b"cancel", "id": b"x", "if_offset": b"-1"}, "bad_header"),
        ({"action": b"cancel", "id": b"x", "if_offset": b"9223372036854775808"}, "bad_header"),
        ({"action": b"cancel", "id": b"x", "if_offset": None}, "bad_header"),
        ({"action": b"cancel", "id": b"x", "if_offset": REPEATED}, "bad_header"),
    ],
)
def test_what_cannot_be_done_is_quarantined(controls: dict[str, Control], reason: str) -> None:
    decision = decide(facts(**controls), table(DELAY))
    assert isinstance(decision, Quarantine)
    assert decision.reason == reason
    assert decision.detail


def test_a_detail_never_shows_a_value() -> None:
    for controls in (
        {"delay": b"secret"},
        {"target": b"secret"},
        {"action": b"secret"},
        {"expires_at": b"secret"},
    ):
        decision = decide(facts(**controls), table(DELAY))
        assert isinstance(decision, Quarantine)
        assert "secret" not in decision.detail


@pytest.mark.parametrize("timestamp_ms", [-1, -5, 253_402_300_800_000, 1 << 63])
def test_a_record_without_a_sensible_timestamp_is_quarantined(timestamp_ms: int) -> None:
    decision = decide(facts("reminders", timestamp_ms, deliver_at=b"1700000005000"), table(DELAY))
    assert isinstance(decision, Quarantine)
    assert decision.reason == "bad_timestamp"


def test_the_largest_target_partition_and_id_are_taken() -> None:
    hold = held(target_partition=b"2147483647", id=b"i" * 1_024)
    assert (hold.target_partition, len(hold.id or "")) == (2_147_483_647, 1_024)


def test_headers_that_a_policy_does_not_read_are_not_checked() -> None:
    assert held(attempt=b"x", first_failure=None, error_class=REPEATED, error_message=b"\xff", due=b"?").attempt == 0
    decision = decide(facts("unknown", delay=b"x"), table(DELAY))
    assert isinstance(decision, Quarantine)
    assert decision.reason == "no_policy"


def test_without_delay_or_target_there_is_nothing_to_do() -> None:
    bare = {**DELAY, "delay": {}, "target": {"allow": ["mail-*"]}}
    for controls in ({"target": b"mail-a"}, {"delay": b"1s"}):
        decision = decide(facts(**controls), table(bare))
        assert isinstance(decision, Quarantine)
        assert decision.reason == "bad_header"
    assert isinstance(decide(facts(delay=b"1s", target=b"mail-a"), table(bare)), Hold)


def test_what_expires_before_it_is_due_is_dead() -> None:
    document = {**DELAY, "dead_letter": {"topic": "lost"}}
    dead = decide(facts(delay=b"1s", expires_at=b"1700000000999", id=b"x"), table(document))
    assert dead == Dead("expired", "lost", "reminders@3", 0, -1, "x", NOW_MS, fires_ms=NOW_MS + 1_000)
    assert isinstance(decide(facts(delay=b"1s", expires_at=b"1700000001000"), table(document)), Hold)
