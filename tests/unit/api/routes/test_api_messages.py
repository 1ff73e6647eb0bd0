import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from api.message import NewMessage
from api.ports import SenderRefused, SenderUnavailable
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.partitioner import murmur2, partition_of
from sidecar.model.record import Outcome
from tests.unit.api_world import NOW_MS, REMINDERS, RETRY, World, problem, world
from tests.unit.lookup.test_receipts import block


@pytest.fixture
def api() -> Iterator[World]:
    with world() as made:
        made.add(REMINDERS)
        yield made


def test_accepted_after_the_acknowledgement(api: World) -> None:
    response = api.message(target="mail-out", key="42", value="hi", delay="90s", id="a")

    assert response.status_code == 202
    partition = partition_of(b"42", 12)
    assert response.json() == {
        "id": "a",
        "due": NOW_MS + 90_000,
        "due_utc": "2027-01-15T08:01:30.000Z",
        "position": {"topic": "reminders", "partition": partition, "offset": 0},
        "place": f"reminders/{partition}/0",
    }
    (record,) = api.sender.sent
    assert (record.key, record.value, record.timestamp_ms) == (b"42", b"hi", NOW_MS)
    assert record.headers == [
        ("tickover-delay", b"90s"),
        ("tickover-target", b"mail-out"),
        ("tickover-id", b"a"),
    ]


def test_default_delay_of_the_policy(api: World) -> None:
    assert api.message(target="push").json()["due"] == NOW_MS + 900_000


def test_deliver_at(api: World) -> None:
    assert api.message(target="push", deliver_at=NOW_MS + 5).json()["due"] == NOW_MS + 5
    assert api.message(target="push", deliver_at="2027-01-15T08:00:01Z").json()["due"] == NOW_MS + 1_000


def test_what_else_headers_can_say(api: World) -> None:
    assert api.message(target="push", expires_at=NOW_MS + 901_000, target_partition=3).status_code == 202
    assert api.sender.sent[0].headers[:3] == [
        ("tickover-expires-at", b"%d" % (NOW_MS + 901_000)),
        ("tickover-target", b"push"),
        ("tickover-target-partition", b"3"),
    ]
    refused = api.message(target="push", delay="2s", expires_at="2027-01-15T08:00:01Z")
    assert (refused.status_code, refused.json()["reason"]) == (422, "expired")
    assert len(api.sender.sent) == 1


@pytest.mark.parametrize(
    ("when", "due_ms"),
    [
        ({"delay": 1_500.0}, NOW_MS + 1_500),
        ({"delay": 1_500.2}, NOW_MS + 1_501),
        ({"delay": 0.0}, NOW_MS),
        ({"deliver_at": NOW_MS + 5.0}, NOW_MS + 5),
        ({"deliver_at": NOW_MS + 5.25}, NOW_MS + 6),
    ],
)
def test_a_number_is_one_however_json_writes_it(api: World, when: dict[str, float], due_ms: int) -> None:
    assert api.message(target="push", **when).json()["due"] == due_ms


@pytest.mark.parametrize("when", [{"delay": -0.5}, {"deliver_at": -0.5}, {"delay": True}, {"delay": 1e30}])
def test_a_number_that_is_no_time_is_refused(api: World, when: dict[str, float]) -> None:
    assert api.message(target="push", **when).status_code == 422


@pytest.mark.parametrize(
    ("body", "places"),
    [
        ({"delay": []}, {"/delay"}),
        ({"value": {"base64": 5}}, {"/value/base64"}),
        ({"value": {}}, {"/value/base64"}),
        ({"headers": [["a", "1"], ["b", 2]]}, {"/headers/1/1"}),
        ({"headers": {"b": 2}}, {"/headers/b"}),
        ({"more": 1, "delay": "1s", "deliver_at": 1}, {"/more"}),
        ({"delay": "1s", "deliver_at": 1}, {"/"}),
    ],
)
def test_what_is_wrong_is_named_by_its_place_in_the_body(api: World, body: dict[str, Any], places: set[str]) -> None:
    document = problem(api.message(target="push", **body), 422, "invalid-body")
    assert {error["at"] for error in document["errors"]} == places


def test_without_key_the_id_decides_the_partition(api: World) -> None:
    for number in range(20):
        response = api.message(target="push", id=f"id-{number}")
        assert response.json()["position"]["partition"] == partition_of(f"id-{number}".encode(), 12)
    assert {record.key for record in api.sender.sent} == {None}


def test_an_empty_key_is_a_key(api: World) -> None:
    response = api.message(target="push", key="", id="x")
    assert response.json()["position"]["partition"] == partition_of(b"", 12)
    assert api.sender.sent[0].key == b""


def test_fresh_ids_differ(api: World) -> None:
    assert api.message(target="push").json()["id"] != api.message(target="push").json()["id"]


def test_content_as_text_null_and_base64(api: World) -> None:
    data = bytes(range(256))
    binary = {"base64": base64.b64encode(data).decode()}
    headers = [["b", binary], ["n", None], ["t", "é"], ["b", "again"]]
    assert api.message(target="push", key=binary, value=None, headers=headers).status_code == 202
    (record,) = api.sender.sent
    assert record.key == data
    assert record.value is None
    assert record.headers[:4] == [("b", data), ("n", None), ("t", "é".encode()), ("b", b"again")]


def test_headers_as_object(api: World) -> None:
    api.message(target="push", headers={"a": "1", "b": None})
    assert api.sender.sent[0].headers[:2] == [("a", b"1"), ("b", None)]


@pytest.mark.parametrize(
    ("body", "type"),
    [
        ({"delay": "1s", "deliver_at": 1}, "invalid-body"),
        ({"delay": "soon"}, "bad-header"),
        ({"delay": -1}, "bad-header"),
        ({"delay": 10**30}, "bad-header"),
        ({"delay": True}, "invalid-body"),
        ({"deliver_at": "2027-01-01T00:00:00"}, "bad-header"),
        ({"expires_at": "tomorrow"}, "bad-header"),
        ({"target_partition": -1}, "invalid-body"),
        ({"target_partition": "1"}, "invalid-body"),
        ({"delay": "401d"}, "too-far"),
        ({"target": "elsewhere"}, "no-source"),
        ({"target": "elsewhere", "source": "reminders"}, "target-not-allowed"),
        ({"target": "no topic"}, "invalid-body"),
        ({"source": "unknown"}, "unknown-source"),
        ({"source": "gold"}, "no-policy"),
        ({"target": "reminders", "source": "reminders"}, "loop"),
        ({"headers": [["tickover-delay", "1s"]]}, "reserved-header"),
        ({"headers": [["tickover-mine", "1s"]]}, "reserved-header"),
        ({"id": "schedule:nightly:1800000000000"}, "invalid-body"),
        ({"headers": [["", "1s"]]}, "invalid-body"),
        ({"headers": [["a\u0000b", "1s"]]}, "invalid-body"),
        ({"headers": [["a", "1", "2"]]}, "invalid-body"),
        ({"headers": {"a": ["1"]}}, "invalid-body"),
        ({"headers": [["a", "1"]] * 999}, "too-many-headers"),
        ({"headers": [["a", "1" * 300_000]]}, "too-many-headers"),
        ({"id": ""}, "invalid-body"),
        ({"id": "a\nb"}, "invalid-body"),
        ({"id": "é" * 600}, "bad-header"),
        ({"value": {"base64": "?"}}, "invalid-base64"),
        ({"value": {"base64": "é"}}, "invalid-base64"),
        ({"value": {"base64": "", "more": 1}}, "invalid-body"),
        ({"value": 1}, "invalid-body"),
        ({"colour": "red"}, "invalid-body"),
        ({"target": None}, "invalid-body"),
    ],
)
def test_refused(api: World, body: dict[str, Any], type: str) -> None:
    problem(api.message(**{"target": "push", **body}), 422, type)
    assert api.sender.sent == []


def test_what_nobody_consumes_is_not_accepted(api: World) -> None:
    """A message to a topic that nobody consumes would never be emitted."""
    api.sources.not_consumed = {"reminders"}
    problem(api.message(target="push", value="hello"), 422, "not-a-source")
    assert api.sender.sent == []
    api.sources.down = "no answer"
    assert problem(api.message(target="push"), 503, "kafka-unavailable")["detail"].endswith("no answer")
    api.sources.topics = ["reminders"]
    assert api.message(target="push").status_code == 202


def test_as_many_headers_as_may_be(api: World) -> None:
    assert api.message(target="push", headers=[["a", "1"]] * 997, delay=1).status_code == 202


def test_source_where_there_is_a_choice(api: World) -> None:
    api.add({**REMINDERS, "name": "gold", "match": {"topics": ["gold", "gold-*"]}})
    document = problem(api.message(target="push"), 422, "ambiguous-source")
    assert document["sources"] == ["gold", "reminders"]
    assert api.message(target="push", source="gold").json()["position"]["topic"] == "gold"


def test_source_known_by_globs_only(api: World) -> None:
    api.add({**REMINDERS, "match": {"topics": ["remind*"]}})
    document = problem(api.message(target="push"), 422, "ambiguous-source")
    assert document["policies"] == ["reminders"]


def test_a_retry_topic_as_source(api: World) -> None:
    api.add(RETRY)
    api.sender.topics["orders-retry"] = 1
    response = api.message(source="orders-retry", target="orders")
    assert response.json()["due"] == NOW_MS + 1_000


def test_would_be_dead_lettered(api: World) -> None:
    api.add({**RETRY, "retry": {**RETRY["retry"], "attempts": 0}})
    api.sender.topics["orders-retry"] = 1
    document = problem(api.message(source="orders-retry", target="orders"), 422, "attempts-exhausted")
    assert "dead-lettered" in document["detail"]


def test_kafka_does_not_answer(api: World) -> None:
    api.sender.failures.append(SenderUnavailable("timed out"))
    response = api.message(target="push")
    problem(response, 503, "kafka-unavailable")
    assert response.headers["retry-after"] == "1"


def test_kafka_refuses(api: World) -> None:
    api.sender.failures.append(SenderRefused("too_large", "Message size too large"))
    assert problem(api.message(target="push"), 422, "too-large")["reason"] == "too_large"


def keyed(api: World, key: str, **body: Any) -> Any:
    return api.call("POST", "/v1/messages", json={"target": "push", **body}, headers={"idempotency-key": key})


def test_a_repeated_request_is_done_once(api: World) -> None:
    first = keyed(api, "k", value="1")
    api.now_ms += 60_000
    second = keyed(api, "k", value="1")
    assert first.status_code == second.status_code == 202
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert len(api.sender.sent) == 1


def test_a_time_in_the_past_must_be_meant(api: World) -> None:
    minute_ago_ms = NOW_MS - 60_000
    for when in (minute_ago_ms - 1, "2027-01-15T07:58:59.999Z"):
        refused = problem(api.message(target="push", deliver_at=when), 422, "in-the-past")
        assert "past=true" in refused["detail"]
        body = {"target": "push", "deliver_at": when}
        meant = api.call("POST", "/v1/messages?past=true", json=body)
        assert (meant.status_code, meant.json()["due"]) == (202, minute_ago_ms - 1)
    assert api.message(target="push", deliver_at=minute_ago_ms).status_code == 202, "clocks differ"


def test_a_repeated_request_is_no_more_in_the_past_than_the_first(api: World) -> None:
    first = keyed(api, "k", deliver_at=NOW_MS + 1)
    api.sender.failures.append(SenderUnavailable("timed out"))
    problem(keyed(api, "lost", deliver_at=NOW_MS + 1), 503, "kafka-unavailable")
    api.now_ms += 3_600_000
    assert keyed(api, "k", deliver_at=NOW_MS + 1).json() == first.json()
    assert keyed(api, "lost", deliver_at=NOW_MS + 1).status_code == 202
    problem(keyed(api, "new", deliver_at=NOW_MS + 1), 422, "in-the-past")
    assert "new" not in " ".join(api.idempotency.kept), "the key is free for a request that is mended"


def test_the_same_body_may_be_written_otherwise(api: World) -> None:
    keyed(api, "k", value="1")
    body = b'{"value":  "1",\n "target": "push"}'
    assert api.send_raw("POST", "/v1/messages", body, **{"idempotency-key": "k"}).status_code == 202
    assert len(api.sender.sent) == 1


def test_an_answer_outlives_the_policy(api: World) -> None:
    keyed(api, "k", value="1")
    api.policies.delete("reminders", 1, "test")
    assert keyed(api, "k", value="1").status_code == 202


def test_same_key_other_body(api: World) -> None:
    keyed(api, "k", value="1")
    problem(keyed(api, "k", value="2"), 422, "idempotency-key-reused")
    assert len(api.sender.sent) == 1


def test_a_retry_after_a_crash_is_the_same_message(api: World) -> None:
    api.sender.failures.append(SenderUnavailable("timed out"))
    problem(keyed(api, "k", delay="1m"), 503, "kafka-unavailable")
    api.now_ms += 10_000
    first = keyed(api, "k", delay="1m").json()
    assert first["due"] == NOW_MS + 60_000

    api.idempotency.kept.clear()  # and with a Redis that forgot
    assert keyed(api, "k", delay="1m").json()["id"] == first["id"]
    assert keyed(api, "other", delay="1m").json()["id"] != first["id"]


def test_a_repeat_after_redis_forgot_sends_nothing_that_has_left(api: World) -> None:
    first = keyed(api, "k", delay="1m").json()
    api.idempotency.kept.clear()
    api.receipts.add(LedgerPlace(1, 8), block({8: Outcome.EMITTED}, {8: first["id"]}))
    again = keyed(api, "k", delay="1m")
    assert (again.status_code, again.json()["id"], len(api.sender.sent)) == (202, first["id"], 1)
    assert again.headers["idempotency-replayed"] == "true"
    assert keyed(api, "k", delay="1m").json() == again.json()  # it is kept again
    keyed(api, "other", delay="1m", id="mine")
    api.receipts.add(LedgerPlace(1, 9), block({9: Outcome.EMITTED}, {9: "mine"}))
    keyed(api, "another", delay="1m", id="mine")  # the caller's own id may be used again
    assert len(api.sender.sent) == 3


def test_a_request_under_way(api: World) -> None:
    api.sender.failures.append(SenderUnavailable("timed out"))
    keyed(api, "k")
    next(iter(api.idempotency.kept.values()))["busy"] = True
    response = keyed(api, "k")
    problem(response, 409, "request-in-progress")
    assert response.headers["retry-after"] == "1"


def test_a_refused_request_frees_its_key(api: World) -> None:
    problem(keyed(api, "k", delay="soon"), 422, "bad-header")
    assert keyed(api, "k", delay="1s").status_code == 202


def test_a_promise_needs_the_store(api: World) -> None:
    api.idempotency.down = True
    problem(keyed(api, "k"), 503, "idempotency-unavailable")
    assert api.sender.sent == []
    assert api.message(target="push").status_code == 202


def test_sent_is_accepted_though_the_answer_is_not_kept(api: World, monkeypatch: pytest.MonkeyPatch) -> None:
    send = api.sender.send

    async def send_and_break(record: Any) -> Any:
        api.idempotency.down = True
        return await send(record)

    monkeypatch.setattr(api.sender, "send", send_and_break)
    assert keyed(api, "k").status_code == 202


@pytest.mark.parametrize("key", ["", "k" * 256, "é"])
def test_bad_idempotency_key(api: World, key: str) -> None:
    response = api.call("POST", "/v1/messages", json={"target": "push"}, headers={"idempotency-key": key.encode()})
    problem(response, 422, "invalid-idempotency-key")


JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), JAVA_HASHES.items())
def test_murmur2_as_in_kafkas_own_test(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    for partitions in (1, 7, 12):  # Utils.toPositive(hash) % partitions
        assert partition_of(key, partitions) == (expected & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize(
    ("body", "status", "type"),
    [
        (b"", 400, "malformed-json"),
        (b"{", 400, "malformed-json"),
        (b"\xff", 400, "malformed-json"),
        (b"\xef\xbb\xbf{}", 400, "malformed-json"),
        (b'{"target": "push"} x', 400, "malformed-json"),
        (b"null", 422, "invalid-body"),
        (b"[]", 422, "invalid-body"),
        (b'{"target": "push", "target": "push"}', 422, "duplicate-key"),
        (b'{"target": "push", "value": {"base64": "", "base64": ""}}', 422, "duplicate-key"),
        (b'{"target": "push", "delay": NaN}', 422, "invalid-number"),
        (b'{"target": "push", "delay": -Infinity}', 422, "invalid-number"),
        (b'{"target": "push", "delay": 1e999}', 422, "invalid-number"),
        (b'{"target": "push", "delay": ' + b"9" * 5_000 + b"}", 422, "invalid-number"),
        (b'{"target": "push", "headers": [["\\ud800", "x"]]}', 422, "invalid-text"),
        (b'{"target": "push", "value": "\\udfff"}', 422, "invalid-text"),
        (b'{"target": "push", "\\ud800": 1}', 422, "invalid-text"),
        (b'{"target": "push", "delay": ' + b"9" * 401 + b"}", 422, "invalid-number"),
        (b"[" * 10_000, 422, "too-deep"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 422, "too-deep"),
        (b"[" * 20_001, 422, "too-many-values"),
        (b'{"target": "push", "value": "' + b'\\",' * 30_000 + b'", "headers": 1}', 422, "invalid-body"),
        (b'{"target": "push", "headers": [' + b'"a",' * 20_001 + b'"a"]}', 422, "too-many-values"),
        (b'{"target": "push", "headers": [' + b'"' * 100_000, 422, "too-many-values"),
        (b"{" + b",".join(b'"%d":0' % number for number in range(1_001)) + b"}", 422, "too-many-values"),
        (b'{"value":' + b"[" * 900 + b"]" * 900 + b"}", 422, "invalid-body"),
    ],
)
def test_hostile_json(api: World, body: bytes, status: int, type: str) -> None:
    problem(api.send_raw("POST", "/v1/messages", body), status, type)
    assert api.sender.sent == []


def test_a_text_may_hold_any_number_of_commas_brackets_and_quotes(api: World) -> None:
    """Only values outside of texts are counted: JSON in a text is one value."""
    value = json.dumps([{"a": 'quote " and backslash \\'}] * 20_000)
    assert api.message(target="push", value=value).status_code == 202
    assert api.sender.sent[0].value == value.encode()


def test_many_unknown_keys_are_told_of_the_first_twenty(api: World) -> None:
    document = problem(api.message(target="push", **{f"k{number}": 0 for number in range(500)}), 422, "invalid-body")
    assert document["errors"] == [
        {"at": f"/k{number}", "message": f"unknown key; known here: {', '.join(NewMessage.model_fields)}"}
        for number in range(20)
    ]


def test_few_unknown_keys_are_told_with_all_else(api: World) -> None:
    document = problem(api.message(target="?", key={"base64": "", "x": 0}, y=0), 422, "invalid-body")
    assert [error["at"] for error in document["errors"]] == ["/key/x", "/y", "/target"]


def test_names_of_headers_are_no_unknown_keys(api: World) -> None:
    assert api.message(target="push", headers={f"k{number}": "x" for number in range(900)}).status_code == 202


def test_of_many_wrong_items_the_first_is_told(api: World) -> None:
    document = problem(api.message(target="push", headers=[["a", "b"], [], []]), 422, "invalid-body")
    assert {error["at"].rpartition("/")[0] for error in document["errors"]} <= {"", "/headers", "/headers/1"}
    assert "/headers/1/0" in {error["at"] for error in document["errors"]}


def test_a_long_key_is_cut_in_an_error(api: World) -> None:
    document = problem(api.message(target="push", **{"k" * 100_000: 0}), 422, "invalid-body")
    assert document["errors"][0]["at"] == "/" + "k" * 200


def test_a_pair_of_surrogates_is_a_character(api: World) -> None:
    body = b'{"target": "push", "value": "\\ud83d\\ude00"}'
    assert api.send_raw("POST", "/v1/messages", body).status_code == 202
    assert api.sender.sent[0].value == "😀".encode()


def test_input_is_never_shown(api: World) -> None:
    response = api.message(target="push", value={"secret": "hunter2"}, id=["hunter2"])
    problem(response, 422, "invalid-body")
    assert "hunter2" not in response.text


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_wrong_content_type(api: World, media_type: str) -> None:
    response = api.send_raw("POST", "/v1/messages", b'{"target":"push"}', **{"content-type": media_type})
    problem(response, 415, "unsupported-media-type")


def test_compressed_bodies_are_not_understood(api: World) -> None:
    problem(
        api.send_raw("POST", "/v1/messages", b"{}", **{"content-encoding": "gzip"}),
        415,
        "unsupported-encoding",
    )


def test_a_body_of_one_mebibyte_and_not_more(api: World) -> None:
    def body(size: int) -> bytes:
        frame = len(json.dumps({"target": "push", "value": ""}))
        return json.dumps({"target": "push", "value": "x" * (size - frame)}).encode()

    assert api.send_raw("POST", "/v1/messages", body(1 << 20)).status_code == 202
    problem(api.send_raw("POST", "/v1/messages", body((1 << 20) + 1)), 413, "body-too-large")


def test_a_chunked_body_is_counted(api: World) -> None:
    taken = 0

    async def chunks() -> Any:
        nonlocal taken
        for _ in itertools.repeat(None, 1_000):
            taken += 1
            yield b" " * 65_536

    response = api.call("POST", "/v1/messages", content=chunks(), headers={"content-type": "application/json"})
    problem(response, 413, "body-too-large")
    assert "connection" not in response.headers, "the server reads the rest, or closes it when it takes too long"
    assert taken <= 17 + 4


def test_a_lying_content_length(api: World) -> None:
    response = api.send_raw("POST", "/v1/messages", b"{}", **{"content-length": "9" * 5_000})
    problem(response, 413, "body-too-large")
