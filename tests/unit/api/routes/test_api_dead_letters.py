"""Dead letters over REST, over letters in memory."""

import threading
from pathlib import Path
from typing import Any

import pytest

from api.access.auth import Role, load_tokens
from api.ports import SenderUnavailable
from sidecar.model.record import Place
from sidecar.model.times import rfc_3339, with_times
from sidecar.operations.dead_letters.browse import Limits
from sidecar.operations.dead_letters.dead_letter import WORD_LENGTH_MAX, DeadLetter
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.groups import notes as group_notes
from sidecar.operations.dead_letters.groups.notes import NOTE_LENGTH_MAX
from sidecar.operations.dead_letters.masking import MASK
from sidecar.operations.dead_letters.reading import Reading
from tests.unit import api_world
from tests.unit.api.access.test_api_auth import bearer, tokens_file
from tests.unit.api_world import World, problem, world
from tests.unit.letter_world import NOW_MS, dead


def filled(api: World) -> None:
    for n in range(4):
        api.letters.add("orders-dlq", dead(error_class="IO", error_message=f"port {n}"), value=b'{"secret": 1, "b": 2}')
    api.letters.add("orders-dlq", dead("expired"), partition=1)
    api.letters.add("other", dead())


def items(api: World, path: str) -> Any:
    response = api.call("GET", path)
    assert response.status_code == 200, response.text
    return response.json()["items"]


def test_pages_of_dead_letters() -> None:
    with world() as api:
        filled(api)
        first = api.call("GET", "/v1/dead-letters?limit=3").json()
        assert [item["offset"] for item in first["items"]] == [0, 1, 2]
        assert first["scanned"] == 3
        assert [item["target"] for item in first["items"]] == ["orders"] * 3
        assert first["remaining"] == 2
        second = api.call("GET", f"/v1/dead-letters?limit=3&cursor={first['next']}").json()
        assert [item["position"] for item in second["items"]] == ["orders-dlq/0/3", "orders-dlq/1/0"]
        assert second["next"] is None
        assert "payload" not in first["items"][0]
        assert api.audited == []


def test_letters_are_shown_in_the_threads_of_those_who_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    document = DeadLetter.document

    def noting(letter: DeadLetter) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return document(letter)

    monkeypatch.setattr(DeadLetter, "document", noting)
    with world() as api:
        filled(api)
        assert len(items(api, "/v1/dead-letters?payload=true")) == 5
        assert api.call("GET", "/v1/dead-letters/orders-dlq/0/0").status_code == 200
    assert {name.rpartition("_")[0] for name in threads} == {"dead-letters"}


def test_what_letters_died_of_is_told_to_the_role_read(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        message = 'order 4711 is "void" at db.prod.internal:5432'
        api.letters.add("orders-dlq", dead(error_message=message))
        api.letters.add("tickover.quarantine", dead("no_policy", detail="no policy matches 'orders-7'"))
        reader, writer = bearer(given[Role.READ]), bearer(given[Role.WRITE])
        items = api.call("GET", "/v1/dead-letters", headers=reader).json()["items"]
        assert [(one["error"], one["error_message"], one["detail"]) for one in items] == [
            ("order <n> is <text> at <address>", 'order 4711 is "void" at <address>', None),
            ("no policy matches <text>", None, "no policy matches 'orders-7'"),
        ]
        one = "/v1/dead-letters/orders-dlq/0/0"
        shown = {
            caller["authorization"]: api.call("GET", one + query, headers=caller).json()["error_message"]
            for caller, query in ((reader, ""), (writer, "?payload=true"))
        }
        assert list(shown.values()) == ['order 4711 is "void" at <address>', message]
        assert [record["actor"] for record in api.audited] == ["WRITE"]


def test_filters() -> None:
    with world() as api:
        filled(api)
        [group] = items(api, "/v1/dead-letters/groups?reason=attempts_exhausted")
        assert (group["count"], group["error"], group["error_class"]) == (4, "port <n>", "IO")
        assert (group["first_seen"], group["last_seen"]) == (NOW_MS, NOW_MS + 3_000)
        assert group["example"] == "orders-dlq/0/0"
        assert len(items(api, f"/v1/dead-letters?fingerprint={group['fingerprint']}")) == 4
        assert len(items(api, f"/v1/dead-letters?since={NOW_MS + 2_000}")) == 2
        assert len(items(api, f"/v1/dead-letters?since={rfc_3339(NOW_MS + 2_000)}")) == 2
        assert len(items(api, "/v1/dead-letters/groups")) == 2
        assert items(api, "/v1/dead-letters?topic=orders-dlq&policy=nobody") == []


def test_a_search_in_errors_goes_on_behind_each_page() -> None:
    with world() as api:
        for n in range(9):
            words = f"Card {n} VOID" if n % 3 == 0 else "no route"
            api.letters.add("orders-dlq", dead(error_class="app.CardError" if n == 8 else "IO", error_message=words))
        api.letters.add("tickover.quarantine", dead("no_policy", detail="no policy for void"))
        api.letters.add("tickover.quarantine", dead("no_policy", detail="no policy for 'x'"))
        first = api.call("GET", "/v1/dead-letters?error=void&limit=2").json()
        assert [item["position"] for item in first["items"]] == ["orders-dlq/0/0", "orders-dlq/0/3"]
        second = api.call("GET", f"/v1/dead-letters?error=void&limit=9&cursor={first['next']}").json()
        assert [item["position"] for item in second["items"]] == ["orders-dlq/0/6", "tickover.quarantine/0/0"]
        assert second["next"] is None
        assert [one["offset"] for one in items(api, "/v1/dead-letters?error=card")] == [0, 3, 6, 8], "classes, too"
        assert [one["offset"] for one in items(api, "/v1/dead-letters?error=card&error_class=IO&topic=orders-dlq")] == [
            0, 3, 6,
        ]  # fmt: skip
        [group] = items(api, "/v1/dead-letters/groups?error=card%200&topic=orders-dlq")
        assert group["count"] == 1
        assert [one["offset"] for one in items(api, "/v1/quarantine?error=FOR%20VOID")] == [0]
        problem(api.call("GET", f"/v1/dead-letters?error={'x' * (WORD_LENGTH_MAX + 1)}"), 422, "invalid-parameter")


def test_a_search_that_finds_nothing_reads_no_more_than_a_page_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_world, "LETTER_RULES", api_world.LETTER_RULES._replace(limits=Limits(4, 60.0)))
    with world() as api:
        api.letters.batch = 1
        for _ in range(10):
            api.letters.add("orders-dlq", dead(error_message="no route"))
        told = api.call("GET", "/v1/dead-letters?error=void").json()
        assert (told["items"], told["scanned"], told["remaining"]) == ([], 4, 6)
        assert told["next"] is not None


def test_searches_by_id_key_and_header(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        for n in range(3):
            headers = [*dead(id=f"m-{n}"), ("trace", f"t={n}".encode()), ("secret", b"4711")]
            api.letters.add("orders-dlq", headers, key=f"customer-{n}".encode())
        reader, writer = bearer(given[Role.READ]), bearer(given[Role.WRITE])
        by_id = api.call("GET", "/v1/dead-letters?id=m-1", headers=reader).json()
        assert [item["offset"] for item in by_id["items"]] == [1]
        for query, offsets in (
            ("key_prefix=customer-2", [2]),
            ("key_prefix=customer", [0, 1, 2]),
            ("header=trace%3Dt%3D0", [0]),
            ("header=secret%3D4711", []),  # masked: nobody learns it by asking
            ("header=trace%3Dt%3D0&id=m-1", []),
        ):
            for call in ("/v1/dead-letters", "/v1/dead-letters/groups"):
                problem(api.call("GET", f"{call}?{query}", headers=reader), 403, "forbidden")
            found = api.call("GET", f"/v1/dead-letters?{query}", headers=writer).json()
            assert [item["offset"] for item in found["items"]] == offsets, query
        problem(api.call("GET", "/v1/dead-letters?header=trace", headers=writer), 422, "invalid-parameter")
        assert [record["actor"] for record in api.audited].count("WRITE") == 5
        assert "customer" not in str(api.audited)
        assert "t=0" not in str(api.audited)


def test_letters_that_were_redriven_are_told_apart() -> None:
    with world() as api:
        filled(api)
        api.redriven.write("plan", [Place("orders-dlq", 0, offset) for offset in (0, 2)], NOW_MS + 60_000)
        sent = with_times({"plan": "plan", "from": NOW_MS + 60_000, "to": NOW_MS + 60_000}, "from", "to")
        listed = items(api, "/v1/dead-letters?topic=orders-dlq&reason=attempts_exhausted")
        assert [item["redriven"] for item in listed] == [sent, None, sent, None]
        assert [item["offset"] for item in items(api, "/v1/dead-letters?reason=attempts_exhausted&open=true")] == [1, 3]
        [group] = items(api, "/v1/dead-letters/groups?reason=attempts_exhausted")
        assert (group["count"], group["redriven"], group["open"]) == (4, 2, 2)
        [group] = items(api, "/v1/dead-letters/groups?reason=attempts_exhausted&open=true")
        assert (group["count"], group["redriven"], group["open"]) == (2, 0, 2)


def test_one_letter_says_by_which_plan_it_was_sent_and_whether_it_came_back() -> None:
    with world() as api:
        filled(api)
        api.redriven.write("plan", [Place("orders-dlq", 0, 0), Place("orders-dlq", 0, 1)], NOW_MS)
        came_back = api.letters.add("orders-dlq", dead(redrive_source="orders-dlq/0/0"), partition=1)
        told = {**with_times({"plan": "plan", "from": NOW_MS, "to": NOW_MS}, "from", "to"), "is_whole": True}
        first = api.call("GET", "/v1/dead-letters/orders-dlq/0/0").json()
        place = str(came_back.place)
        assert first["redriven"] == {**told, "came_back": place, "came_back_place": place}
        other = api.call("GET", "/v1/dead-letters/orders-dlq/0/1").json()
        assert other["redriven"] == {**told, "came_back": None, "came_back_place": None}
        assert api.call("GET", f"/v1/dead-letters/{came_back.place}").json()["redriven"] is None  # it is open


def test_letters_that_were_discarded_are_neither_open_nor_redriven() -> None:
    with world() as api:
        filled(api)
        api.redriven.write("plan", [Place("orders-dlq", 0, 0)], NOW_MS)
        api.redriven.write("bin", [Place("orders-dlq", 0, offset) for offset in (1, 3)], NOW_MS, discards=True)
        told = with_times({"plan": "bin", "from": NOW_MS, "to": NOW_MS}, "from", "to")
        listed = items(api, "/v1/dead-letters?reason=attempts_exhausted")
        assert [item["discarded"] for item in listed] == [None, told, None, told]
        assert [item["redriven"] is None for item in listed] == [False, True, True, True]
        assert [item["offset"] for item in items(api, "/v1/dead-letters?reason=attempts_exhausted&open=true")] == [2]
        [group] = items(api, "/v1/dead-letters/groups?reason=attempts_exhausted")
        assert (group["count"], group["redriven"], group["discarded"], group["open"]) == (4, 1, 2, 1)
        one = api.call("GET", "/v1/dead-letters/orders-dlq/0/1").json()
        assert (one["redriven"], one["discarded"]) == (None, told)
        api.redriven.write("again", [Place("orders-dlq", 0, 1)], NOW_MS + 1)  # a plan that says so
        one = api.call("GET", "/v1/dead-letters/orders-dlq/0/1").json()
        assert (one["redriven"]["plan"], one["discarded"]) == ("again", None)


def say(api: World, fingerprint: str, topic: str = "orders-dlq", **body: Any) -> Any:
    return api.call("PUT", f"/v1/dead-letters/{topic}/groups/{fingerprint}", json=body)


def test_a_group_is_new_known_resolved_and_back_again() -> None:
    with world() as api:
        filled(api)
        path = "/v1/dead-letters/groups?reason=attempts_exhausted"
        [group] = items(api, path)
        assert (group["state"], group["note"], group["said"]) == ("new", None, None)
        told = say(api, group["fingerprint"], state="known", note="ticket 7").json()
        assert told == {
            "topic": "orders-dlq", "fingerprint": group["fingerprint"], "state": "known",
            **with_times({"note": "ticket 7", "said_by": "anonymous", "said": NOW_MS}, "said"),
        }  # fmt: skip
        [group] = items(api, path)
        assert (group["state"], group["note"], group["said_by"]) == ("known", "ticket 7", "anonymous")
        say(api, group["fingerprint"], state="resolved")
        [group] = items(api, path)
        assert (group["state"], group["note"]) == ("resolved", None)
        again = dead(error_class="IO", error_message="port 9")
        api.letters.partitions["orders-dlq", 0].append(
            DeadLetter(Place("orders-dlq", 0, 4), 1, b"k", b"v", again)  # of a producer whose clock is far behind
        )
        assert [group["state"] for group in items(api, path)] == ["back_again"]
        say(api, group["fingerprint"], state="resolved")
        assert [group["state"] for group in items(api, path)] == ["resolved"]
        say(api, group["fingerprint"], state="new")
        assert [(group["state"], group["said"]) for group in items(api, path)] == [("new", None)]
        assert api.redriven.note_of("orders-dlq", group["fingerprint"]) is None
        actions = {(record["action"], record["notes"]["state"]) for record in api.audited}
        assert actions == {("put_dead_letter_group", state) for state in ("known", "resolved", "new")}


def test_words_about_a_group_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with world() as api:
        filled(api)
        fingerprint = "0" * 16
        problem(say(api, fingerprint, state="back_again"), 422, "invalid-body")
        problem(say(api, fingerprint, state="known", note="x" * (NOTE_LENGTH_MAX + 1)), 422, "invalid-body")
        problem(say(api, "xyz", state="known"), 422, "invalid-parameter")
        problem(say(api, fingerprint, topic="other", state="known"), 404, "topic-not-found")
        monkeypatch.setattr(group_notes, "NOTES_MAX", 1)
        assert say(api, fingerprint, state="known").status_code == 200
        problem(say(api, "1" * 16, state="known"), 409, "too-many-groups")
        assert say(api, fingerprint, state="resolved").status_code == 200, "of one that has words they can be changed"
        assert say(api, "1" * 16, state="new").status_code == 200, "nothing is kept of it"


def test_a_trend_counts_minutes_of_the_hour_and_hours_of_the_day() -> None:
    with world() as api:
        api.letters.batch = 1
        for minutes in (0, 0, 1, 59, 60, 23 * 60, 24 * 60):
            letter = api.letters.add("orders-dlq", dead())
            lane = api.letters.partitions["orders-dlq", 0]
            lane[-1] = letter._replace(timestamp_ms=NOW_MS - minutes * 60_000)
        page = api.call("GET", "/v1/dead-letters/groups?trend=true").json()
        [group] = page["items"]
        minutes, hours = group["trend"]["minutes"], group["trend"]["hours"]
        assert (len(minutes), minutes[-2:], minutes[0], sum(minutes)) == (60, [1, 2], 1, 4)
        assert (len(hours), hours[-2:], hours[0], sum(hours)) == (24, [3, 2], 1, 6)
        assert page["trend"]["minutes_from"] == NOW_MS - 59 * 60_000
        assert page["trend"]["hours_from"] == NOW_MS - 23 * 3_600_000
        assert "trend" not in api.call("GET", "/v1/dead-letters/groups").json()["items"][0]


def test_all_pages_of_a_trend_are_of_the_same_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    with world() as api:
        filled(api)
        api.letters.batch = 1
        monkeypatch.setattr(Reading, "_counter", with_pages_of_one(Reading._counter))
        found: list[int] = []
        cursor: str | None = ""
        while cursor is not None:
            page = api.call("GET", f"/v1/dead-letters/groups?trend=true{cursor and '&cursor=' + cursor}").json()
            found.append(page["trend"]["minutes_from"])
            cursor, api.now_ms = page["next"], api.now_ms + 60_000
        assert len(found) == 5
        assert set(found) == {NOW_MS - 59 * 60_000}


def test_a_page_of_groups_reads_as_little_as_is_asked_for_and_counts_what_was_read_before() -> None:
    with world() as api:
        filled(api)
        api.letters.batch = 1
        pages = [api.call("GET", f"/v1/dead-letters/groups?read_max={most}").json() for most in (1, 2, 1_000_000)]
        assert [sum(group["count"] for group in page["items"]) for page in pages] == [1, 3, 5]
        assert [page["remaining"] for page in pages] == [4, 2, 0]
        problem(api.call("GET", "/v1/dead-letters/groups?read_max=0"), 422, "invalid-parameter")


def with_pages_of_one(made: Any) -> Any:
    def browser(reading: Reading, *arguments: Any) -> Any:
        reading.rules = reading.rules._replace(limits=Limits(1, 60.0))
        return made(reading, *arguments)

    return browser


@pytest.mark.parametrize(
    ("query", "status", "type"),
    [
        ("topic=other", 404, "topic-not-found"),
        ("topic=nowhere-dlq", 404, "topic-not-found"),
        ("topic=a%20b", 422, "invalid-parameter"),
        ("fingerprint=xyz", 422, "invalid-parameter"),
        ("since=-1", 422, "invalid-parameter"),
        ("since=1800000000", 422, "invalid-parameter"),
        ("until=yesterday", 422, "invalid-parameter"),
        ("limit=501", 422, "invalid-parameter"),
        ("unknown=1", 422, "unknown-parameter"),
        ("cursor=AAAA", 422, "invalid-cursor"),
        ("cursor=%21", 422, "invalid-cursor"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/dead-letters", "/v1/dead-letters/groups"])
def test_bad_queries(path: str, query: str, status: int, type: str) -> None:
    with world() as api:
        filled(api)
        problem(api.call("GET", f"{path}?{query}"), status, type)


def test_one_dead_letter() -> None:
    with world() as api:
        filled(api)
        assert api.call("GET", "/v1/dead-letters/orders-dlq/1/0").json()["reason"] == "expired"
        for place in ("orders-dlq/0/99", "orders-dlq/7/0"):
            problem(api.call("GET", f"/v1/dead-letters/{place}"), 404, "dead-letter-not-found")
        problem(api.call("GET", "/v1/dead-letters/other/0/0"), 404, "topic-not-found")
        problem(api.call("GET", "/v1/dead-letters/orders-dlq/0/-1"), 422, "invalid-parameter")
        problem(api.call("GET", "/v1/dead-letters/orders-dlq/0/x"), 422, "invalid-parameter")


def test_payloads_are_masked_and_their_sight_recorded() -> None:
    with world() as api:
        filled(api)
        [first, *_] = items(api, "/v1/dead-letters?payload=true&limit=1")
        assert first["payload"]["value"] == {"secret": MASK, "b": 2}
        assert api.call("GET", "/v1/dead-letters/orders-dlq/0/1?payload=true").json()["payload"]["key"] == "k"
        page, one = api.audited
        assert (page["action"], page["outcome"]) == ("list_dead_letters", "done")
        assert (page["notes"]["payload"], page["notes"]["count"]) == (True, 1)
        assert one["subject"] == {"topic": "orders-dlq", "partition": "0", "offset": "1"}


def test_payloads_that_cannot_be_recorded_are_not_shown() -> None:
    with world() as api:
        filled(api)
        api.audit.failures = [SenderUnavailable("away")]
        response = api.call("GET", "/v1/dead-letters/orders-dlq/0/1?payload=true")
        problem(response, 503, "audit-unavailable")
        assert "secret" not in response.text


def test_payloads_need_more_than_the_role_read(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        filled(api)
        path_of_one = "/v1/dead-letters/orders-dlq/0/0"
        assert api.call("GET", path_of_one, headers=bearer(given[Role.READ])).status_code == 200
        asked = f"{path_of_one}?payload=true"
        problem(api.call("GET", asked, headers=bearer(given[Role.READ])), 403, "forbidden")
        assert api.call("GET", asked, headers=bearer(given[Role.WRITE])).status_code == 200
        assert [(record["actor"], record["outcome"]) for record in api.audited] == [
            ("READ", "refused"),
            ("WRITE", "done"),
        ]


def test_kafka_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with world() as api:

        def away() -> dict[str, int]:
            raise LettersUnavailable("no brokers")

        monkeypatch.setattr(api.letters, "topics", away)
        problem(api.call("GET", "/v1/dead-letters"), 503, "kafka-unavailable")
