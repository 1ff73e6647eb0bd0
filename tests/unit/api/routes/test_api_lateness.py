"""Why a message was late, over REST: settled and held, by id and by position; what was recorded the test gives."""

import threading
from typing import Any

import pytest

from sidecar.conditions.attribution import Span
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.condition import Kind, Subject
from sidecar.model.record import Outcome, TopicPartition
from tests.unit.api.routes.test_api_held import get, row
from tests.unit.api_world import NOW_MS, problem, world
from tests.unit.lookup.test_receipts import block, settled

# The ledger's record 8 was due at 4,008 ms; its block was written at 5,000 and appended at 5,030.
EMITTED = {8: Outcome.EMITTED}
LEDGER = LedgerPlace(1, 8, 5_030)


def span(kind: Kind, begin: int, end: int, topic: str = "", partition: int = -1, run: str = "one") -> Span:
    return Span(Subject(kind, topic, partition), begin, end, run, f"replica-{run}")


def had(begin: int, end: int, run: str = "one", kind: Kind = Kind.RUNNING) -> Span:
    return span(kind, begin, end, "reminders", 3, run)


def parts(document: Any) -> list[tuple[str, int, int]]:
    return [(part["cause"], part["from"], part["to"]) for part in document["parts"]]


def test_a_settled_message_with_what_lay_between() -> None:
    with world() as api:
        api.receipts.add(LEDGER, block(EMITTED, {8: "a"}))
        api.conditions.spans = [
            had(0, 4_200, "dead"),
            had(4_500, 4_600, kind=Kind.RECOVERING),
            had(4_600, NOW_MS),
            span(Kind.SUSPENDED, 4_700, 4_900, "mail"),
            span(Kind.SUSPENDED, 4_600, 5_000, "push"),
            span(Kind.SUSPENDED, 4_600, 5_000, "mail", run="of another partition"),
        ]
        document = get(api, "/v1/lateness", id="a")
        assert document == get(api, "/v1/lateness", position="reminders/3/8")
    assert parts(document) == [
        ("unaccounted", 4_008, 4_200),
        ("unowned", 4_200, 4_500),
        ("recovering", 4_500, 4_600),
        ("unaccounted", 4_600, 4_700),
        ("suspended", 4_700, 4_900),
        ("unaccounted", 4_900, 5_000),
        ("settle", 5_000, 5_030),
    ]
    assert [part["replica"] for part in document["parts"][1:5]] == ["replica-dead", "replica-one", None, "replica-one"]
    assert [part["known_of"] for part in document["parts"][3:]] == ["partition", "target", "partition", "record"]
    assert document["by_cause"] == {
        "unaccounted": 392, "unowned": 300, "suspended": 200, "recovering": 100, "settle": 30,
    }  # fmt: skip
    assert (document["due"], document["until"], document["lateness_ms"]) == (4_008, 5_030, 1_022)
    assert (document["id"], document["state"], document["target"]) == ("a", "emitted", "mail")
    assert (document["problem"], document["partial"]) == (None, False)


def test_what_is_not_recorded_is_not_guessed() -> None:
    with world() as api:
        api.receipts.add(LEDGER, block(EMITTED, {8: "a"}))
        api.conditions.spans = [had(0, 4_100, "dead"), had(4_600, 5_000)]
        assert get(api, "/v1/lateness", id="a")["by_cause"] == {"unowned": 500, "unaccounted": 492, "settle": 30}
        api.conditions.spans.append(span(Kind.REDIS, 4_000, 4_300, run="of another partition"))
        away = {"unaccounted": 492, "unowned": 300, "not_recorded": 200, "settle": 30}
        assert get(api, "/v1/lateness", id="a")["by_cause"] == away, "an owner may not have been written meanwhile"
        api.conditions.problem = "Redis at secret.internal does not answer"
        document = get(api, "/v1/lateness", id="a")
        assert document["by_cause"] == {"not_recorded": 500, "unaccounted": 492, "settle": 30}
        assert "secret" not in document["problem"]
        api.conditions.spans, api.conditions.problem = [], ""
        assert get(api, "/v1/lateness", id="a")["by_cause"] == {"not_recorded": 992, "settle": 30}


@pytest.mark.parametrize(("in_overflow", "causes"), [(0, {"unaccounted"}), (1, {"redis"})])
def test_redis_matters_only_to_what_was_there(in_overflow: int, causes: set[str]) -> None:
    with world() as api:
        api.receipts.add(LEDGER, block({}, settled=settled(EMITTED, {8: "a"})._replace(in_overflow=[in_overflow])))
        api.conditions.spans = [had(0, NOW_MS), span(Kind.REDIS, 4_000, 5_000)]
        assert set(get(api, "/v1/lateness", id="a")["by_cause"]) - {"settle"} == causes


def test_a_held_message_in_memory_may_have_come_from_redis() -> None:
    """Nobody says so: Redis counts where nothing else was in the way."""
    with world() as api:
        api.held.rows = [held_row(8, NOW_MS - 9_000)]
        api.conditions.spans = [
            had(0, NOW_MS),
            span(Kind.REDIS, NOW_MS - 8_000, NOW_MS - 2_000),
            span(Kind.SUSPENDED, NOW_MS - 4_000, NOW_MS - 3_000, "mail"),
        ]
        by_cause = {"redis": 5_000, "unaccounted": 3_000, "suspended": 1_000}
        assert get(api, "/v1/lateness", id="id-8")["by_cause"] == by_cause
        assert get(api, "/v1/lateness", position="reminders/3/8")["by_cause"] == by_cause
        api.held.rows = [held_row(8, NOW_MS - 9_000, tier="overflow")]
        by_cause = {"redis": 6_000, "unaccounted": 3_000}
        assert get(api, "/v1/lateness", position="reminders/3/8")["by_cause"] == by_cause


@pytest.mark.parametrize(("attempt", "causes"), [(0, {"unaccounted"}), (2, {"breaker"})])
def test_a_breaker_matters_only_to_retries(attempt: int, causes: set[str]) -> None:
    with world() as api:
        api.receipts.add(LEDGER, block({}, settled=settled(EMITTED, {8: "a"})._replace(attempts=[attempt])))
        api.conditions.spans = [had(0, NOW_MS), span(Kind.BREAKER, 4_000, 5_000, "mail")]
        assert set(get(api, "/v1/lateness", id="a")["by_cause"]) - {"settle"} == causes


def test_it_is_told_off_the_event_loop_and_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with world() as api:
        api.receipts.add(LEDGER, block(EMITTED, {8: "a"}))
        for query in ("id=a", "position=reminders/3/8"):
            assert api.call("GET", f"/v1/lateness?{query}").status_code == 200
            assert api.conditions.asked_in is not threading.main_thread()
        monkeypatch.setattr("api.lookup.ALONE_WAITING_MAX", 0)
        for query in ("id=a", "position=reminders/3/8"):
            answer = api.call("GET", f"/v1/lateness?{query}")
            problem(answer, 503, "look-up-unavailable")
            assert answer.headers["retry-after"] == "1"


def test_a_held_message_that_is_overdue_up_to_now() -> None:
    with world() as api:
        api.held.rows = [held_row(8, NOW_MS - 9_000), held_row(9, NOW_MS + 9_000)]
        api.conditions.spans = [had(0, NOW_MS), span(Kind.RATE, NOW_MS - 5_000, NOW_MS, "mail")]
        document = get(api, "/v1/lateness", id="id-8")
        assert document["by_cause"] == {"rate": 5_000, "unaccounted": 4_000}
        assert (document["state"], document["until"], document["lateness_ms"]) == ("held", NOW_MS, 9_000)
        assert document == get(api, "/v1/lateness", position="reminders/3/8")
        early = get(api, "/v1/lateness", id="id-9")
        assert (early["lateness_ms"], early["parts"]) == (0, [])


def test_what_waits_at_the_gate_of_a_suspended_target_waits_for_the_target() -> None:
    with world() as api:
        api.held.rows = [held_row(8, NOW_MS - 9_000) | {"attempt": 1}]
        api.conditions.spans = [
            had(0, NOW_MS),
            span(Kind.SUSPENDED, NOW_MS - 8_000, NOW_MS - 2_000, "mail"),
            span(Kind.RATE, NOW_MS - 9_000, NOW_MS - 1_000, "mail"),
            span(Kind.BREAKER, NOW_MS - 8_500, NOW_MS, "mail"),
        ]
        assert get(api, "/v1/lateness", id="id-8")["by_cause"] == {"suspended": 6_000, "breaker": 2_500, "rate": 500}


def held_row(offset: int, due_ms: int, **other: Any) -> dict[str, Any]:
    return row(offset, due=due_ms, target="mail", attempt=None, **other)


def test_a_position_leads_to_what_was_moved() -> None:
    with world() as api:
        moved = settled({8: Outcome.MOVED}, {8: "a"})._replace(related={8: 11})
        api.receipts.add(LedgerPlace(1, 7, 4_900), block({}, settled=moved))
        api.held.rows = [held_row(11, NOW_MS - 1_000, accepted={"topic": "reminders", "partition": 3, "offset": 8})]
        for offset in (8, 11):
            assert get(api, "/v1/lateness", position=f"reminders/3/{offset}")["state"] == "held"
        api.receipts.add(LEDGER, block({}, settled=settled({11: Outcome.EMITTED}, {11: "a"})._replace(related={11: 8})))
        for offset in (8, 11):
            document = get(api, "/v1/lateness", position=f"reminders/3/{offset}")
            assert (document["state"], document["position"]["offset"]) == ("emitted", 11)


def test_a_position_leads_to_what_was_fired_at_once() -> None:
    """Move and emission are in one block."""
    with world() as api:
        fired = settled({8: Outcome.MOVED, 11: Outcome.EMITTED}, {8: "a", 11: "a"})._replace(related={8: 11, 11: 8})
        api.receipts.add(LEDGER, block({}, settled=fired))
        for offset in (8, 11):
            document = get(api, "/v1/lateness", position=f"reminders/3/{offset}")
            assert (document["state"], document["position"]["offset"]) == ("emitted", 11)


def test_an_overdue_one_is_found_behind_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.lateness.PAGE", 2)
    monkeypatch.setattr("api.routes.lateness.PAGES_MAX", 3)
    with world() as api:
        api.held.rows = [held_row(offset, NOW_MS - 100 + offset) for offset in range(9)]
        assert get(api, "/v1/lateness", position="reminders/3/5")["id"] == "id-5"
        answer = problem(api.call("GET", "/v1/lateness?position=reminders/3/7"), 503, "look-up-incomplete")
        assert answer["detail"] == (
            "It is none of the first 6 overdue messages of its partition, and there are more. Ask by its id."
        )
        assert get(api, "/v1/lateness", id="id-7")["state"] == "held"
        del api.held.rows[6:]
        problem(api.call("GET", "/v1/lateness?position=reminders/3/7"), 404, "unknown-message")


@pytest.mark.parametrize(
    "query",
    [
        "", "id=a&position=t/0/1", "position=t/0/1&source=t", "position=t", "position=t/0/x", "position=a b/0/1",
        "position=t/9999999999/1", "position=t/0/9999999999999999999", "id=a&colour=red", "position=/0/1",
    ],
)  # fmt: skip
def test_refusals(query: str) -> None:
    with world() as api:
        assert api.call("GET", f"/v1/lateness?{query}").status_code == 422


def test_what_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.held.AGAIN_S", ())
    with world() as api:
        for query in ("id=nobody", "position=reminders/3/8"):
            problem(api.call("GET", f"/v1/lateness?{query}"), 404, "unknown-message")
        api.held.missing = [TopicPartition("reminders", 3)]
        for query in ("id=nobody", "position=reminders/3/8"):
            problem(api.call("GET", f"/v1/lateness?{query}"), 503, "look-up-incomplete")
        api.held.down = "Redis does not answer"
        for query in ("id=nobody", "position=reminders/3/8"):
            problem(api.call("GET", f"/v1/lateness?{query}"), 503, "look-up-unavailable")


def test_a_message_that_left_before_it_was_due_was_not_late() -> None:
    with world() as api:
        cancelled = settled({8: Outcome.CANCELLED}, {8: "a"})._replace(dues_ms=[9_999])
        api.receipts.add(LEDGER, block({}, settled=cancelled))
        document = get(api, "/v1/lateness", id="a")
    assert (document["state"], document["lateness_ms"], document["parts"]) == ("cancelled", 0, [])
