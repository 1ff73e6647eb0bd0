"""The quarantine over REST: listed as dead letters are, and sent to its source again, corrected and once."""

import base64
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError

from api.ports import Limits, SenderUnavailable
from policies.headers import REDRIVE_COUNT, REDRIVE_PLAN, REDRIVE_SOURCE
from sidecar.model.record import Headers, Place
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.redrive_plan import Plan, Progress, Redrive, SearchedSelection
from sidecar.operations.jobs.job import State
from sidecar.operations.jobs.transactional_sender import (
    NoTransactions,
    Refused,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
)
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world
from tests.unit.letter_world import dead
from tests.unit.redrive_world import GOVERNOR

QUARANTINE = "tickover.quarantine"
BAD_DELAY: Headers = [
    ("trace", b"7f3a"),
    ("tickover-delay", b"soon"),
    ("tickover-target", b"push"),
    ("tickover-id", b"a"),
]


def aside(
    api: World, headers: Headers | None = None, reason: str = "bad_header", source: str = "reminders/3/7", **record: Any
) -> str:
    """A record of the quarantine; returns where it is sent again."""
    given = BAD_DELAY if headers is None else headers
    letter = api.letters.add(
        QUARANTINE, [*given, *dead(reason, source=source, detail="tickover-delay is no duration")], **record
    )
    return f"/v1/quarantine/0/{letter.place.offset}/send"


@pytest.fixture
def api() -> Any:
    with world() as made:
        made.add(REMINDERS)
        made.sender.topics["push"] = 1
        yield made


def send(api: World, path: str, **correction: Any) -> httpx.Response:
    return api.call("POST", path, json=correction)


def sent(api: World) -> Any:
    [record] = api.resent
    return record


def test_it_is_listed_with_reasons_and_without_other_letters(api: World) -> None:
    aside(api)
    aside(api, reason="no_policy")
    api.letters.add("orders-dlq", dead())
    listed = api.call("GET", "/v1/quarantine").json()
    assert [(item["reason"], item["detail"]) for item in listed["items"]] == [
        ("bad_header", "tickover-delay is no duration"),
        ("no_policy", "tickover-delay is no duration"),
    ]
    assert (listed["items"][0]["source"], listed["items"][0]["target"]) == ("reminders/3/7", "reminders")
    assert len(api.call("GET", "/v1/quarantine", params={"reason": "no_policy"}).json()["items"]) == 1
    first = api.call("GET", "/v1/quarantine", params={"limit": 1}).json()
    assert [item["offset"] for item in first["items"]] == [0]
    following = api.call("GET", "/v1/quarantine", params={"limit": 1, "cursor": first["next"]}).json()
    assert [item["offset"] for item in following["items"]] == [1]
    one = api.call("GET", "/v1/quarantine/0/0").json()
    assert (one["id"], one["reason"], "payload" in one) == ("a", "bad_header", False)
    shown = api.call("GET", "/v1/quarantine/0/0", params={"payload": "true"}).json()
    assert shown["payload"]["headers"][:2] == [["trace", "7f3a"], ["tickover-delay", "soon"]]
    problem(api.call("GET", "/v1/quarantine/0/9"), 404, "dead-letter-not-found")
    assert api.call("GET", "/v1/quarantine", params={"topic": "orders-dlq"}).status_code == 422


def test_a_corrected_record_goes_to_its_source_and_all_else_stays(api: World) -> None:
    path = aside(api, key=b"customer-7", value=b"\xff\x00")
    answer = send(api, path, headers={"tickover-delay": "10m"})
    assert answer.status_code == 202, answer.text
    assert answer.json() == {
        "position": "tickover.quarantine/0/0",
        "place": "tickover.quarantine/0/0",
        "source": "reminders",
        "due": NOW_MS + 600_000,
        "due_utc": "2027-01-15T08:10:00.000Z",
        "target": "push",
        "policy": "reminders@1",
        "plan": "by-hand-0-0",
    }
    record = sent(api)
    assert (record.target, record.key, record.value) == ("reminders", b"customer-7", b"\xff\x00")
    assert record.headers == [
        ("trace", b"7f3a"), ("tickover-delay", b"10m"), ("tickover-target", b"push"), ("tickover-id", b"a"),
        ("tickover-policy", b"orders@1"), ("tickover-attempt", b"6"),
        (REDRIVE_PLAN, b"by-hand-0-0/1"), (REDRIVE_COUNT, b"1"), (REDRIVE_SOURCE, b"tickover.quarantine/0/0"),
    ]  # fmt: skip
    assert record.partition == -1, "its key says where its like are"
    assert api.shippings["by-hand-0-0"].is_closed
    [recorded] = api.audited
    assert (recorded["action"], recorded["outcome"]) == ("send_quarantined", "done")
    assert recorded["notes"] == {
        "position": "tickover.quarantine/0/0", "controls": "tickover-delay", "other_headers": 0, "content": "",
        "source": "reminders",
    }  # fmt: skip


def test_headers_key_and_value_can_be_given_and_left_out(api: World) -> None:
    path = aside(api, [("a", b"1"), ("a", b"2"), ("b", b"3"), ("tickover-target", b"push")], key=b"k")
    data = base64.b64encode(b"\xff").decode()
    corrected = {"headers": [["a", "x"], ["a", None], ["c", {"base64": data}]], "without": ["b", "gone"]}
    assert send(api, path, **corrected, key=None, value="new").status_code == 202
    record = sent(api)
    assert record.headers[:3] == [("a", b"x"), ("a", None), ("tickover-target", b"push")]
    assert record.headers[-1] == ("c", b"\xff")
    assert "b" not in {name for name, _ in record.headers}
    assert (record.key, record.value, record.partition) == (None, b"new", 3)


def test_as_it_is_once_a_policy_has_changed(api: World) -> None:
    headers: Headers = [("tickover-target", b"push"), ("tickover-delay", b"9d")]
    path = aside(api, headers, "too_far", key=None)
    api.add({**REMINDERS, "delay": {"default": "15m", "max": "1d"}})
    assert problem(send(api, path), 422, "too-far")["reason"] == "too_far"
    api.add(REMINDERS)
    assert send(api, path).status_code == 202
    assert sent(api).partition == 3


def test_it_goes_once_whoever_repeats_it(api: World) -> None:
    path = aside(api)
    assert send(api, path, headers={"tickover-delay": "10m"}).status_code == 202
    again = problem(send(api, path, headers={"tickover-delay": "20m"}), 409, "already-sent")
    assert "by-hand-0-0" in again["detail"]
    assert len(api.resent) == 1
    told = api.call("GET", "/v1/quarantine/0/0").json()["redriven"]
    assert told["plan"] == "by-hand-0-0"
    assert api.call("GET", "/v1/quarantine", params={"open": "true"}).json()["items"] == []


def test_who_has_sent_it_sees_so_at_once(api: World) -> None:
    """Else the console's next page would offer to send it again."""
    path = aside(api)
    assert api.call("GET", "/v1/quarantine/0/0").json()["redriven"] is None
    assert send(api, path, headers={"tickover-delay": "10m"}).status_code == 202
    assert api.call("GET", "/v1/quarantine/0/0").json()["redriven"]["plan"] == "by-hand-0-0"


def test_it_is_told_as_sent_though_that_can_not_be_read_now(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def catch_up() -> None:
        if api.redriven.unread:
            raise LettersUnavailable("the topic can't be read to its end")

    monkeypatch.setattr(api.redriven, "catch_up", catch_up)
    assert send(api, aside(api), headers={"tickover-delay": "10m"}).status_code == 202
    assert len(api.resent) == 1


def test_whom_another_replica_was_faster_than_is_refused_at_the_last_look(
    api: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = aside(api)
    begin = api.resending._begin

    def after_another(plan: str) -> Any:
        api.redriven.write(plan, [Place(QUARANTINE, 0, 0)])
        return begin(plan)

    monkeypatch.setattr(api.resending, "_begin", after_another)
    problem(send(api, path, headers={"tickover-delay": "10m"}), 409, "already-sent")
    assert api.resent == []
    assert api.shippings["by-hand-0-0"].is_closed


def test_what_a_redrive_has_sent_is_not_sent_by_hand(api: World) -> None:
    path = aside(api)
    api.redriven.write("3f9a0c", [Place(QUARANTINE, 0, 0)])
    assert "3f9a0c" in problem(send(api, path, headers={"tickover-delay": "1m"}), 409, "already-sent")["detail"]


@pytest.mark.parametrize(
    ("topic", "state", "chosen", "busy"),
    [
        (QUARANTINE, State.RUNNING, {}, True),
        (QUARANTINE, State.CANARY, {"reason": "bad_header"}, True),
        (QUARANTINE, State.RUNNING, {"reason": "no_policy"}, False),
        (QUARANTINE, State.RUNNING, {"error": "NO DURATION"}, True),
        (QUARANTINE, State.RUNNING, {"error": "no target"}, False),
        (QUARANTINE, State.PLANNED, {}, False),
        (QUARANTINE, State.DONE, {}, False),
        ("orders-dlq", State.RUNNING, {}, False),
    ],
)
def test_while_a_redrive_may_send_it_nothing_is_sent_by_hand(
    api: World, topic: str, state: State, chosen: dict[str, str], busy: bool
) -> None:
    path = aside(api)
    plan = Plan(
        id="3f9a0c", author="ann", created_ms=NOW_MS, topic=topic, topic_id="",
        selection=SearchedSelection(**chosen), target=None, spans=(), governor=GOVERNOR,
    )  # fmt: skip
    api.redriving.plans.redrives["3f9a0c"] = Redrive(plan=plan, progress=Progress(state=state))
    answer = send(api, path, headers={"tickover-delay": "1m"})
    assert (answer.status_code == 409) == busy
    if busy:
        problem(answer, 409, "letters-busy")
    assert len(api.resent) == (0 if busy else 1)


@pytest.mark.parametrize(
    ("correction", "status", "type"),
    [
        ({}, 422, "bad-header"),
        ({"headers": {"tickover-delay": "2 weeks or so"}}, 422, "bad-header"),
        ({"headers": {"tickover-delay": "1m", "tickover-target": "orders"}}, 422, "target-not-allowed"),
        ({"headers": {"tickover-delay": "1m", "tickover-target": "mail-nowhere"}}, 422, "unknown-target"),
        ({"headers": {"tickover-delay": "1m", "tickover-expires-at": str(NOW_MS)}}, 422, "expired"),
        ({"headers": {"tickover-source": "orders/0/1"}}, 422, "reserved-header"),
        ({"without": ["tickover-redrive-count"]}, 422, "reserved-header"),
        ({"headers": {"tickover-delay": "1m"}, "value": {"base64": "?"}}, 422, "invalid-base64"),
        ({"headers": {"tickover-delay": "1m"}, "delay": "1m"}, 422, "invalid-body"),
        ({"headers": [[f"h{n}", None] for n in range(40)]}, 422, "too-many-headers"),
        ({"headers": [["h", "x" * 2_000]]}, 422, "too-many-headers"),
    ],
)
def test_corrections_that_would_not_help_are_refused(correction: Any, status: int, type: str) -> None:
    with world(limits=Limits(headers=30, header_bytes=1_000)) as api:
        api.add(REMINDERS)
        api.sender.topics["push"] = 1
        path = aside(api)
        if type == "too-many-headers":
            correction = {**correction, "headers": [*correction["headers"], ["tickover-delay", "1m"]]}
        problem(send(api, path, **correction), status, type)
        assert api.resent == []
        assert api.shippings == {}


def test_records_that_cannot_be_sent(api: World) -> None:
    for path, type in (
        ("/v1/quarantine/0/7/send", "dead-letter-not-found"),
        (aside(api, source=""), "not-sendable"),
        (aside(api, reason="attempts_exhausted"), "not-sendable"),
        (aside(api, reason="too_large", value=None), "not-sendable"),
        (aside(api, source="gone/0/1"), "unknown-source"),
    ):
        answer = send(api, path, headers={"tickover-delay": "10m"})
        problem(answer, {"dead-letter-not-found": 404, "unknown-source": 422}.get(type, 409), type)
    letter = api.letters.partitions[QUARANTINE, 0][0]
    assert letter is not None
    api.letters.partitions[QUARANTINE, 0][0] = letter._replace(headers=None)
    problem(send(api, "/v1/quarantine/0/0/send"), 409, "not-sendable")
    api.sources.not_consumed = {"reminders"}
    problem(send(api, aside(api), headers={"tickover-delay": "10m"}), 422, "not-a-source")
    assert api.resent == []


def test_a_value_that_was_left_behind_can_be_given(api: World) -> None:
    path = aside(api, reason="too_large", value=None)
    assert send(api, path, headers={"tickover-delay": "10m"}, value="smaller").status_code == 202
    assert sent(api).value == b"smaller"


def test_a_control_record_has_no_due_time(api: World) -> None:
    path = aside(api, [("tickover-action", b"cancel")])
    answer = send(api, path, headers={"tickover-id": "a"}).json()
    assert (answer["due"], answer["target"], answer["policy"]) == (None, None, "reminders@1")


@pytest.mark.parametrize(
    ("failure", "status", "type"),
    [
        (Refused({0: KafkaError.MSG_SIZE_TOO_LARGE}), 422, "too-large"),
        (Refused({0: KafkaError.INVALID_RECORD}), 409, "target-gone"),
        (TargetRefused("Topic authorization failed"), 409, "target-gone"),
        (TakenOver(), 409, "request-in-progress"),
        (NoTransactions("none"), 503, "transactions-unsupported"),
        (ShipmentFailed("timed out"), 503, "kafka-unavailable"),
    ],
)
def test_what_kafka_says_is_told_and_the_call_may_be_repeated(
    api: World, failure: Exception, status: int, type: str
) -> None:
    path = aside(api)
    api.resend_failures.append(failure)
    problem(send(api, path, headers={"tickover-delay": "1m"}), status, type)
    assert api.shippings["by-hand-0-0"].is_closed
    assert send(api, path, headers={"tickover-delay": "1m"}).status_code == 202
    assert len(api.resent) == 1


def test_brokers_that_do_not_answer(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(_: str) -> int | None:
        raise SenderUnavailable("timed out")

    monkeypatch.setattr(api.sender, "partition_count", away)
    problem(send(api, aside(api), headers={"tickover-delay": "1m"}), 503, "kafka-unavailable")
