"""Many messages in one request: each has its own answer, and a request that is repeated sends nothing twice."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from api.message import BATCH_MAX
from api.ports import SenderRefused, SenderUnavailable
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.record import Outcome
from tests.unit.api_world import NOW_MS, REMINDERS, World, problem, world
from tests.unit.lookup.test_receipts import block

GOOD = {"target": "push", "value": "v", "delay": "1m"}


@pytest.fixture
def api() -> Iterator[World]:
    with world() as made:
        made.add(REMINDERS)
        yield made


def batch(api: World, *messages: Any, key: str = "", query: str = "") -> httpx.Response:
    headers = {"idempotency-key": key} if key else {}
    return api.call("POST", f"/v1/messages:batch{query}", json={"messages": messages}, headers=headers)


def statuses(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return [item["status"] for item in response.json()["items"]]


def test_each_message_has_its_own_answer(api: World) -> None:
    answer = batch(api, {**GOOD, "id": "a"}, {**GOOD, "delay": "401d", "id": "b"}, {"target": 5}, "x", GOOD)
    assert statuses(answer) == [202, 422, 422, 422, 202]
    document = answer.json()
    first, second, third, _, last = document["items"]
    position = {"topic": "reminders", "partition": api.sender.sent[0].partition, "offset": 0}
    due = {"due": NOW_MS + 60_000, "due_utc": "2027-01-15T08:01:00.000Z"}
    place = "reminders/{partition}/0".format_map(position)
    assert first == {"status": 202, "id": "a", **due, "position": position, "place": place}
    assert (second["id"], second["problem"]["type"]) == ("b", "/problems/too-far")
    assert third["problem"]["errors"][0]["at"] == "/target"
    assert last["id"] not in ("", None)
    assert (document["accepted"], document["refused"]) == (2, 3)
    assert len(api.sender.sent) == 2
    [record] = api.audited
    assert record["notes"] == {
        "messages": 5, "dry_run": False, "accepted": 2, "refused": 3, "ids": [first["id"], last["id"]],
    }  # fmt: skip


def test_messages_are_sent_in_their_order(api: World) -> None:
    """The last of two with the same id replaces the first."""
    batch(api, *({**GOOD, "id": "a", "value": str(number)} for number in range(40)))
    assert [record.value for record in api.sender.sent] == [str(number).encode() for number in range(40)]


def test_kafka_s_answers_are_those_of_each(api: World) -> None:
    api.sender.failures = [SenderRefused("too_large", "x"), SenderUnavailable("timed out")]
    answer = batch(api, GOOD, {**GOOD, "id": "b"}, GOOD)
    assert statuses(answer) == [503, 422, 202]
    assert answer.json()["items"][1]["problem"]["reason"] == "too_large"
    assert answer.json()["items"][1]["id"] == "b"


def test_a_dry_run_sends_nothing_and_foresees_all(api: World) -> None:
    answer = batch(api, {**GOOD, "id": "a"}, {**GOOD, "target": "elsewhere"}, query="?dry_run=true", key="k")
    assert statuses(answer) == [202, 422]
    assert answer.json()["items"][0]["due"] == NOW_MS + 60_000
    assert answer.json()["items"][0]["position"] is None
    assert api.sender.sent == []
    assert api.idempotency.kept == {}


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": [GOOD], "more": 1}, {"messages": GOOD}, []])
def test_what_is_no_batch_is_refused_as_a_whole(api: World, body: Any) -> None:
    problem(api.call("POST", "/v1/messages:batch", json=body), 422, "invalid-body")


def test_a_batch_has_a_limit(api: World) -> None:
    assert statuses(batch(api, *[GOOD] * BATCH_MAX)) == [202] * BATCH_MAX
    problem(batch(api, *[GOOD] * (BATCH_MAX + 1)), 422, "invalid-body")
    assert len(api.sender.sent) == BATCH_MAX


def test_a_past_must_be_meant(api: World) -> None:
    past = {**GOOD, "delay": None, "deliver_at": NOW_MS - 100_000}
    assert statuses(batch(api, past)) == [422]
    assert statuses(batch(api, past, query="?past=true")) == [202]


def test_a_repeated_batch_is_done_once(api: World) -> None:
    first = batch(api, GOOD, {**GOOD, "delay": "401d"}, key="k")
    api.now_ms += 5_000
    again = batch(api, GOOD, {**GOOD, "delay": "401d"}, key="k")
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert len(api.sender.sent) == 1
    problem(batch(api, GOOD, key="k"), 422, "idempotency-key-reused")
    assert api.message(**GOOD).status_code == 202
    alone = api.call("POST", "/v1/messages", json=GOOD, headers={"idempotency-key": "k"})
    assert alone.status_code == 202, "a key of a batch is not that of a message"


def test_what_kafka_did_not_answer_is_tried_again_under_the_same_ids_and_times(api: World) -> None:
    api.sender.failures = [SenderUnavailable("timed out")]
    first = batch(api, GOOD, GOOD, key="k")
    assert statuses(first) == [503, 202]
    api.now_ms += 10_000
    again = batch(api, GOOD, GOOD, key="k")
    assert statuses(again) == [202, 202]
    assert [item["id"] for item in again.json()["items"]] == [item["id"] for item in first.json()["items"]]
    assert {record.timestamp_ms for record in api.sender.sent} == {NOW_MS}
    assert len({item["id"] for item in again.json()["items"]}) == 2


def test_of_a_batch_that_is_tried_again_nothing_is_sent_that_has_left(api: World) -> None:
    api.sender.failures = [SenderUnavailable("timed out")]
    ids = [item["id"] for item in batch(api, GOOD, GOOD, key="k").json()["items"]]
    api.receipts.add(LedgerPlace(1, 8), block({5: Outcome.EMITTED}, {5: ids[1]}))
    assert statuses(batch(api, GOOD, GOOD, key="k")) == [202, 202]
    sent = [dict(record.headers)["tickover-id"] for record in api.sender.sent]
    assert sent == [ids[1].encode(), ids[0].encode()]


def test_a_key_is_free_again_when_all_was_refused(api: World) -> None:
    assert statuses(batch(api, {**GOOD, "delay": "401d"}, key="k")) == [422]
    assert statuses(batch(api, GOOD, key="k")) == [202]


def test_keys_that_are_none_and_a_store_that_is_away(api: World) -> None:
    problem(batch(api, GOOD, key="k" * 256), 422, "invalid-idempotency-key")
    api.idempotency.down = True
    problem(batch(api, GOOD, key="k"), 503, "idempotency-unavailable")
    assert api.sender.sent == []


def test_what_was_sent_is_told_although_it_cannot_be_kept(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go_away(key: str, fingerprint: bytes, now_ms: int) -> Any:
        begun = await begin(key, fingerprint, now_ms)
        api.idempotency.down = True
        return begun

    begin = api.idempotency.begin
    monkeypatch.setattr(api.idempotency, "begin", go_away)
    assert statuses(batch(api, GOOD, key="k")) == [202]
    assert json.dumps(api.audited[-1]["outcome"]) == '"done"'
