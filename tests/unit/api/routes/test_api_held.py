"""Looking up and listing over REST: each answer and each refusal, with what the replicas know given by the test."""

import json
from typing import Any

import pytest

from api.pagination import encode
from api.routes.held import _key_of_cursor
from sidecar.lookup import attempts
from sidecar.lookup.query import Key, Query
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.record import Headers, Outcome, TopicPartition
from tests.unit.api_world import NOW_MS, World, problem, world
from tests.unit.lookup.test_receipts import block, entries, settled

HERE = TopicPartition("reminders", 3)


def row(offset: int, **other: Any) -> dict[str, Any]:
    position = {"topic": "reminders", "partition": 3, "offset": offset} | other.pop("position", {})
    return {
        "id": f"id-{offset}",
        "source": position["topic"],
        "position": position,
        "accepted": position,
        "state": "held",
        "tier": "wheel",
        "due": NOW_MS + offset,
    } | other


def get(api: World, path: str, **query: Any) -> Any:
    answer = api.call("GET", path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(document: Any) -> list[tuple[str, Any]]:
    return [(event["event"], event["time"]) for event in document["timeline"]]


# --- one message --------------------------------------------------------------------------------------------------


def test_a_held_message_with_its_way_so_far() -> None:
    with world() as api:
        api.held.rows = [row(8, id="a", tier="overflow"), row(9)]
        api.receipts.add(LedgerPlace(1, 7), block({}, entries=entries({8: "a"})))
        document = get(api, "/v1/messages/a")
    assert {**row(8, id="a", tier="overflow"), "partial": False, "missing": []}.items() <= document.items()
    assert events(document) == [("accepted", None), ("overflow", 5_000), ("due", NOW_MS + 8)]
    assert document["timeline"][1]["ledger"] == {"partition": 1, "offset": 7}


@pytest.mark.parametrize("outcome", [Outcome.EMITTED, Outcome.DEAD, Outcome.QUARANTINED, Outcome.CANCELLED])
def test_a_settled_message_with_its_whole_way(outcome: Outcome) -> None:
    with world() as api:
        api.receipts.add(LedgerPlace(1, 7), block({}, entries=entries({8: "a"})))
        api.receipts.add(LedgerPlace(1, 8), block({8: outcome, 11: Outcome.APPLIED}, {8: "a", 11: "a"}))
        document = get(api, "/v1/messages/a")
    word = outcome.name.lower()
    assert (document["state"], document["source"], document["due"], document["settled"]) == (
        word, "reminders", 4_008, 5_000,
    )  # fmt: skip
    assert document["position"]["offset"] == 8
    way = [("accepted", None), ("due", 4_008), ("overflow", 5_000), ("not-found", 5_000), (word, 5_000)]
    assert events(document) == way
    assert document["timeline"][-2]["control"] == {"topic": "reminders", "partition": 3, "offset": 11}
    assert document["timeline"][-2]["control_place"] == "reminders/3/11"
    assert document["timeline"][-1]["ledger"] == {"partition": 1, "offset": 8}
    assert document["timeline"][-1]["ledger_place"] == f"{api.about.settings.ledger_topic}/1/8"


def test_a_message_cancelled_before_it_was_due_never_was_due() -> None:
    early = settled({8: Outcome.CANCELLED, 11: Outcome.APPLIED}, {8: "a"})
    early = early._replace(dues_ms=[9_999, 4_000], related={8: 11, 11: 8})
    with world() as api:
        api.receipts.add(LedgerPlace(1, 8), block({}, settled=early))
        document = get(api, "/v1/messages/a")
    assert events(document) == [("accepted", None), ("cancelled", 5_000)]
    assert document["due"] == 9_999
    assert document["timeline"][0]["position"]["offset"] == 8
    assert document["timeline"][-1]["by"]["offset"] == 11
    assert document["timeline"][-1]["by_place"] == "reminders/3/11"


def test_a_cancel_that_went_to_another_partition_is_shown_with_the_message_and_without_it() -> None:
    with world() as api:
        elsewhere = settled({11: Outcome.APPLIED}, {11: "a"})
        api.receipts.add(LedgerPlace(1, 8), block({}, settled=elsewhere, partition=0))
        control = {"topic": "reminders", "partition": 0, "offset": 11}
        unknown = problem(api.call("GET", "/v1/messages/a"), 404, "unknown-message")
        assert [one["control"] for one in unknown["controls"]] == [control]
        assert unknown["controls"][0]["ledger_place"] == f"{api.about.settings.ledger_topic}/1/8"
        api.held.rows = [row(8, id="a")]
        document = get(api, "/v1/messages/a")
    assert [(one["event"], one.get("control")) for one in document["timeline"]][-2:] == [
        ("not-found", control), ("due", None),
    ]  # fmt: skip


def test_a_message_settled_while_it_was_looked_for_is_settled() -> None:
    with world() as api:
        api.held.rows = [row(8, id="a")]
        api.receipts.add(LedgerPlace(1, 8), block({8: Outcome.EMITTED}, {8: "a"}))
        assert get(api, "/v1/messages/a")["state"] == "emitted"


def test_a_moved_message_is_held_under_its_new_place() -> None:
    with world() as api:
        api.held.rows = [row(11, id="a", accepted={"topic": "reminders", "partition": 3, "offset": 8})]
        moved = settled({8: Outcome.MOVED, 11: Outcome.APPLIED}, {8: "a"})._replace(related={8: 11})
        api.receipts.add(LedgerPlace(1, 8), block({}, settled=moved))
        document = get(api, "/v1/messages/a")
    assert document["state"] == "held"
    [move] = [event for event in document["timeline"] if event["event"] == "moved"]
    assert document["timeline"][0]["position"]["offset"] == 8
    assert move["by"] == {"topic": "reminders", "partition": 3, "offset": 11}
    assert (move["by_place"], document["place"], document["accepted_place"]) == (
        "reminders/3/11", "reminders/3/11", "reminders/3/8",
    )  # fmt: skip


# --- deliveries before --------------------------------------------------------------------------------------------


def remember(api: World, *told: tuple[int, Outcome, int]) -> None:
    """The ledger says of these offsets, one after the other, how they were settled and with which number."""
    for number, (offset, outcome, attempt) in enumerate(told):
        one = settled({offset: outcome}, {offset: "a"})._replace(attempts=[attempt])
        if outcome is Outcome.DEAD:
            one = one._replace(reasons={offset: "attempts_exhausted"})
        api.receipts.add(LedgerPlace(1, 20 + number), block({}, settled=one))


def way(document: Any) -> list[tuple[Any, ...]]:
    """Events up to the acceptance, each with what is told of it."""
    names = ("attempt", "first", "last")
    told = [
        (event["event"], *(event[name] for name in names if name in event), (event.get("position") or {}).get("offset"))
        for event in document["timeline"]
    ]
    return told[: 1 + next(n for n, event in enumerate(told) if event[0] == "accepted")]


def test_a_retry_that_is_held_tells_of_the_deliveries_before() -> None:
    with world() as api:
        remember(api, (4, Outcome.EMITTED, 2), (6, Outcome.EMITTED, 3))
        api.receipts.add(LedgerPlace(1, 30), block({}, entries=entries({4: "a"})))  # of an earlier delivery
        api.receipts.add(LedgerPlace(1, 31), block({}, entries=entries({8: "a"})))
        api.held.rows = [row(8, id="a", attempt=4, first_failure=NOW_MS - 9_000)]
        document = get(api, "/v1/messages/a")
    assert way(document) == [("first-failure", 1, 4), ("attempt", 2, 4), ("attempt", 3, 6), ("accepted", 8)]
    assert document["timeline"][0]["time"] == NOW_MS - 9_000
    second = document["timeline"][1]
    assert (second["time"], second["time_utc"], second["target"]) == (5_000, "1970-01-01T00:00:05.000Z", "mail")
    assert second["ledger"] == {"partition": 1, "offset": 20}
    assert [event for event, _ in events(document)].count("overflow") == 1


@pytest.mark.parametrize(
    ("remembered", "next", "expected"),
    [
        ([], 0, []),
        ([], 2, [("first-failure", 1, 40)]),
        ([], 3, [("first-failure", 1, None), ("attempts-unknown", 2, 2, None)]),
        ([], 2**31 - 1, [("first-failure", 1, None), ("attempts-unknown", 2, 2**31 - 2, None)]),
        (
            [(6, Outcome.EMITTED, 4)],
            7,
            [
                ("first-failure", 1, None), ("attempts-unknown", 2, 3, None), ("attempt", 4, 6),
                ("attempts-unknown", 5, 6, None),
            ],
        ),
        # Another message had the id before: it had come to its third delivery.
        (
            [(2, Outcome.EMITTED, 2), (3, Outcome.EMITTED, 3), (6, Outcome.EMITTED, 2)],
            3,
            [("first-failure", 1, 6), ("attempt", 2, 6)],
        ),
        # It was a dead letter, and was sent again.
        (
            [(2, Outcome.EMITTED, 2), (3, Outcome.DEAD, 2), (6, Outcome.EMITTED, 2)],
            3,
            [("dead-before", 3), ("first-failure", 1, 6), ("attempt", 2, 6)],
        ),
        (
            [(2, Outcome.EMITTED, 2), (3, Outcome.DEAD, 2)],
            3,
            [("dead-before", 3), ("first-failure", 1, None), ("attempts-unknown", 2, 2, None)],
        ),
        ([(2, Outcome.CANCELLED, 2), (3, Outcome.APPLIED, 0)], 2, [("first-failure", 1, 40)]),
    ],
)  # fmt: skip
def test_what_is_not_known_of_deliveries_before_is_said(
    remembered: list[tuple[int, Outcome, int]], next: int, expected: list[tuple[Any, ...]]
) -> None:
    with world() as api:
        remember(api, *remembered)
        api.held.rows = [row(40, id="a", attempt=next or None)]
        assert way(get(api, "/v1/messages/a")) == [*expected, ("accepted", 40)]


@pytest.mark.parametrize(
    ("outcome", "attempt", "expected"),
    [
        (Outcome.EMITTED, 3, [("first-failure", 1, 4), ("attempt", 2, 4)]),
        (Outcome.CANCELLED, 3, [("first-failure", 1, 4), ("attempt", 2, 4)]),
        (Outcome.DEAD, 2, [("first-failure", 1, 4), ("attempt", 2, 4)]),  # what it counts was made
        (Outcome.DEAD, 3, [("first-failure", 1, 4), ("attempt", 2, 4), ("attempts-unknown", 3, 3, None)]),
        (Outcome.EMITTED, 2, [("first-failure", 1, 8)]),
    ],
)
def test_a_retry_that_has_left_tells_of_the_deliveries_before(
    outcome: Outcome, attempt: int, expected: list[tuple[Any, ...]]
) -> None:
    with world() as api:
        remember(api, (4, Outcome.EMITTED, 2), (8, outcome, attempt))
        document = get(api, "/v1/messages/a")
    assert way(document) == [*expected, ("accepted", 8)]
    assert document["timeline"][-1]["event"] == outcome.name.lower()


def test_only_the_last_of_many_deliveries_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "EARLIER_MAX", 2)
    with world() as api:
        remember(api, *((offset, Outcome.EMITTED, offset + 2) for offset in range(5)))
        api.held.rows = [row(40, id="a", attempt=7)]
        assert way(get(api, "/v1/messages/a"))[1:-1] == [
            ("attempts-unknown", 2, 4, None), ("attempt", 5, 3), ("attempt", 6, 4),
        ]  # fmt: skip


def test_an_id_in_use_again_is_held() -> None:
    with world() as api:
        api.receipts.add(LedgerPlace(1, 8), block({8: Outcome.EMITTED}, {8: "a"}))
        api.held.rows = [row(20, id="a")]
        assert get(api, "/v1/messages/a")["position"]["offset"] == 20


def test_an_id_held_in_several_places_is_a_conflict_until_it_is_narrowed() -> None:
    elsewhere = {"topic": "gold", "partition": 1}
    with world() as api:
        api.held.rows = [row(8, id="a"), row(9, id="a", position=elsewhere)]
        answer = problem(api.call("GET", "/v1/messages/a"), 409, "held-in-several-places")
        assert [at["offset"] for at in answer["positions"]] == [8, 9]
        assert get(api, "/v1/messages/a", source="gold")["position"]["offset"] == 9
        assert get(api, "/v1/messages/a", partition=3)["position"]["offset"] == 8
        problem(api.call("GET", "/v1/messages/a?source=gold&partition=3"), 404, "unknown-message")


def test_an_unknown_id_is_looked_for_again_before_it_is_called_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.held.AGAIN_S", (0.0, 0.0))
    with world() as api:
        problem(api.call("GET", "/v1/messages/nobody"), 404, "unknown-message")
        assert len(api.held.asked) == 3
        api.receipts.add(LedgerPlace(1, 8), block({8: Outcome.APPLIED}, {8: "a"}))  # an action that hit nothing
        problem(api.call("GET", "/v1/messages/a"), 404, "unknown-message")


def test_not_found_where_not_all_could_be_asked_is_no_404(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.held.AGAIN_S", ())
    with world() as api:
        api.held.missing = [TopicPartition("gold", 2)]
        answer = problem(api.call("GET", "/v1/messages/nobody"), 503, "look-up-incomplete")
        assert answer["missing"] == [{"topic": "gold", "partition": 2}]
        api.held.rows = [row(8, id="a")]
        document = get(api, "/v1/messages/a")
        assert (document["state"], document["partial"]) == ("held", True)


def test_not_found_while_something_is_not_read_yet_is_no_404(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.held.AGAIN_S", ())
    with world() as api:
        api.held.unread = [TopicPartition("gold", 2)]
        answer = problem(api.call("GET", "/v1/messages/nobody"), 503, "look-up-incomplete")
        assert answer["missing"] == [{"topic": "gold", "partition": 2}]
        api.held.rows = [row(8, id="a")]
        assert get(api, "/v1/messages/a")["partial"] is False


def test_ids_of_any_text() -> None:
    with world() as api:
        api.held.rows = [row(1, id="order/7 é?"), row(2, id="x/fire")]
        assert get(api, "/v1/messages/order%2F7%20%C3%A9%3F")["position"]["offset"] == 1
        assert get(api, "/v1/messages/x/fire")["position"]["offset"] == 2
        problem(api.call("GET", "/v1/messages/" + "x" * 1_025), 422, "invalid-id")


# --- lists --------------------------------------------------------------------------------------------------------


def test_pages_by_due_time_follow_each_other() -> None:
    with world() as api:
        api.held.rows = [row(offset) for offset in range(5)]
        seen: list[int] = []
        cursor: dict[str, str] = {}
        for _ in range(3):
            page = get(api, "/v1/messages", limit=2, **cursor)
            seen += [item["position"]["offset"] for item in page["items"]]
            cursor = {"cursor": page["next"]}
        assert seen == [0, 1, 2, 3, 4]
        assert page["next"] is None
        assert (page["partial"], page["missing"]) == (False, [])


def test_filters_reach_the_replicas() -> None:
    with world() as api:
        api.held.missing = [HERE]
        conditions = {"topic": "gold", "partition": 2, "policy": "p@3", "target": "mail", "key_prefix": "k"}
        times = {"error_class": "E", "due_from": "2026-01-01T00:00:00Z", "due_to": "1800000000000"}
        page = get(api, "/v1/messages", **conditions, **times, header="h=a=b")
        expected = Query("gold", 2, "p@3", "mail", "k", "E", 1_767_225_600_000, 1_800_000_000_000, "", "h=a=b")
        assert api.held.asked == [expected]
        assert (page["partial"], page["missing"]) == (True, [{"topic": "reminders", "partition": 3}])


def test_what_has_an_id_is_found_by_it() -> None:
    with world() as api:
        api.held.rows = [row(8, id="a"), row(9, id="b"), row(7, id="a", position={"topic": "gold"})]
        page = get(api, "/v1/messages", id="a", policy="p")
        assert [item["source"] for item in page["items"]] == ["gold", "reminders"]
        assert page["next"] is None
        assert api.held.asked == [Query(id="a", policy="p")], "other conditions are for the replicas, too"
        after = encode(f'[{NOW_MS + 7}, "gold", 3, 7]')
        assert len(get(api, "/v1/messages", id="a", cursor=after)["items"]) == 1


def test_a_count_is_of_places_or_of_what_one_page_has() -> None:
    with world() as api:
        api.held.rows = [row(offset) for offset in range(3)]
        api.held.minutes = {-1: 3}
        assert "count" not in get(api, "/v1/messages")
        assert get(api, "/v1/messages", count="true", limit=1)["count"] == 3
        assert get(api, "/v1/messages", count="true", source="gold", partition=1)["count"] == 3
        assert api.held.asked[-1] == Query("gold", 1)
        assert get(api, "/v1/messages", count="true", policy="p", limit=2)["count"] is None
        assert get(api, "/v1/messages", count="true", policy="p")["count"] == 3, "all of them are on the page"
        api.held.missing = [HERE]
        assert get(api, "/v1/messages", count="true")["missing"] == [{"topic": "reminders", "partition": 3}]


def test_a_payload_is_read_where_the_message_came_to() -> None:
    with world() as api:
        for offset in range(10):
            headers: Headers = [("tickover-id", b"a"), ("my-secret", b"s")] if offset == 8 else []
            api.letters.add("reminders", headers, partition=3, key=b"k", value=b'{"n": 1, "secret": 2}')
        moved = row(12, id="a", accepted={"topic": "reminders", "partition": 3, "offset": 8})
        api.held.rows = [moved, row(5, id="b"), row(40, id="c"), row(1, id="d", position={"topic": "gone"})]
        told = get(api, "/v1/messages/a", payload="true")
        assert told["payload_known"]
        assert told["payload"] == {
            "key": "k", "value": {"n": 1, "secret": "***"}, "headers": [["tickover-id", "a"], ["my-secret", "***"]],
        }  # fmt: skip
        assert "payload" not in get(api, "/v1/messages/a")
        for id in ("b", "c", "d"):  # another record lies there; nothing does; there is no such topic
            told = get(api, f"/v1/messages/{id}", payload="true")
            assert (told["payload"], told["payload_known"]) == (None, False)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/forecast"])
def test_a_source_is_named_as_in_the_items_or_as_a_topic(path: str) -> None:
    with world() as api:
        for query in ({"source": "gold"}, {"topic": "gold"}, {"source": "gold", "topic": "gold"}):
            get(api, path, **query)
            assert api.held.asked.pop().topic == "gold"
        problem(api.call("GET", path, params={"source": "gold", "topic": "silver"}), 422, "invalid-parameter")
        assert api.held.asked == []


@pytest.mark.parametrize(
    ("query", "type"),
    [
        ("limit=501", "invalid-parameter"),
        ("limit=0", "invalid-parameter"),
        ("cursor=", "invalid-cursor"),
        ("cursor=!!", "invalid-cursor"),
        ("cursor=bm8", "invalid-cursor"),
        ("cursor=W3RydWUsICJ0IiwgMSwgMV0", "invalid-cursor"),  # [true, "t", 1, 1]
        ("cursor=" + "x" * 3_000, "invalid-parameter"),
        ("state=held", "unknown-parameter"),
        ("Topic=gold", "unknown-parameter"),
        ("due_from=yesterday", "invalid-parameter"),
        ("due_from=2026-01-01T00:00:00", "invalid-parameter"),
        ("due_from=100000000000&due_to=100000000000", "invalid-range"),
        ("partition=x", "invalid-parameter"),
        ("header=name", "invalid-parameter"),
        ("header==value", "invalid-parameter"),
        ("id=" + "x" * 1_025, "invalid-parameter"),
        ("topic=" + "x" * 1_025, "invalid-parameter"),
    ],
)
def test_a_list_that_cannot_be_asked_for(query: str, type: str) -> None:
    with world() as api:
        problem(api.call("GET", f"/v1/messages?{query}"), 422, type)
        assert api.held.asked == []


def test_a_replica_that_can_look_nothing_up_says_why() -> None:
    with world() as api:
        api.held.down = "Redis does not answer"
        for path in ("/v1/messages", "/v1/messages/a", "/v1/forecast"):
            answer = problem(api.call("GET", path), 503, "look-up-unavailable")
            assert "Redis does not answer" in answer["detail"]


def test_only_so_many_look_ups_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.lookup.WAITING_MAX", 0)
    with world() as api:
        problem(api.call("GET", "/v1/messages"), 503, "look-up-unavailable")


# --- forecast -----------------------------------------------------------------------------------------------------


def test_the_forecast_has_every_minute_and_what_is_before_and_later() -> None:
    this = NOW_MS // 60_000
    with world() as api:
        api.held.minutes = {this - 2: 3, this: 1, this + 2: 7, -1: 100}
        document = get(api, "/v1/forecast", minutes=3)
        assert [item["held"] for item in document["items"]] == [1, 0, 7]
        assert [item["minute"] for item in document["items"]] == [(this + n) * 60_000 for n in range(3)]
        assert (document["before"], document["later"], document["partial"]) == (3, 100, False)


@pytest.mark.parametrize(
    ("query", "type"),
    [("minutes=0", "invalid-parameter"), ("minutes=1441", "invalid-parameter"), ("limit=5", "unknown-parameter")],
)
def test_a_forecast_that_cannot_be_asked_for(query: str, type: str) -> None:
    with world() as api:
        problem(api.call("GET", f"/v1/forecast?{query}"), 422, type)


def test_a_cursor_goes_on_behind_its_place() -> None:
    key = Key(5, "tö", 2, 9)
    assert _key_of_cursor(encode(json.dumps(key))) == key
