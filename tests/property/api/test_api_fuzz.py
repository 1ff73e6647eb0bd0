"""The answer is never a 5xx, whatever is sent, and what is accepted can be handed to Kafka."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.model.partitioner import murmur2, partition_of
from tests.examples import examples
from tests.unit.api_world import NOW_MS, REMINDERS, RETRY, World, world

TEXT = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Cc"]), max_size=3)
NUMBERS = st.integers() | st.floats()
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
CONTENT = TEXT | st.none() | st.fixed_dictionaries({"base64": st.sampled_from(["", "AA==", "?"])}) | JSON
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "target": st.sampled_from(["push", "mail-out", "reminders", "x"]) | JSON,
        "source": st.sampled_from(["reminders", "gold", "none"]) | JSON,
        "key": CONTENT,
        "value": CONTENT,
        "headers": st.lists(st.tuples(TEXT, CONTENT), max_size=4) | st.dictionaries(TEXT, CONTENT, max_size=4) | JSON,
        "delay": st.sampled_from(["1s", "PT1H", "500d", ""]) | JSON,
        "deliver_at": st.integers(0, 2 * NOW_MS) | JSON,
        "id": TEXT | JSON,
        "other": JSON,
    },
)
FUZZ = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def never_5xx(api: World, method: str, path: str, body: Any, **headers: str) -> int:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = api.send_raw(method, path, data, **headers)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
    return response.status_code


@FUZZ
@given(st.lists(MESSAGES | JSON, min_size=1, max_size=10))
def test_messages(bodies: list[Any]) -> None:
    with world() as api:
        api.add(REMINDERS)
        accepted = [never_5xx(api, "POST", "/v1/messages", body) == 202 for body in bodies]
        assert len(api.sender.sent) == sum(accepted)


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["/v1/messages", "/v1/policies/explain"]))
def test_bytes(body: bytes, path: str) -> None:
    with world() as api:
        assert never_5xx(api, "POST", path, body) in (400, 422)


def changed(document: Any, places: st.DataObject) -> Any:
    """The document with one place in it replaced by anything."""
    if isinstance(document, dict) and document and places.draw(st.booleans()):
        key = places.draw(st.sampled_from(sorted(document)))
        return {**document, key: changed(document[key], places)}
    return places.draw(JSON)


@FUZZ
@given(st.data(), st.sampled_from([REMINDERS, RETRY]))
def test_policies(data: st.DataObject, document: dict[str, Any]) -> None:
    body = changed(document, data)
    with world() as api:
        status = never_5xx(api, "PUT", "/v1/policies/p", body, **{"if-none-match": "*"})
        never_5xx(api, "POST", "/v1/policies/explain", {"policy": body, "record": {"topic": "reminders"}})
        assert (status == 201) == ("p" in api.policies.table.policies)


@FUZZ
@given(st.data())
def test_explain(data: st.DataObject) -> None:
    whole = {
        "policy": RETRY,
        "record": {
            "topic": "orders-retry",
            "partition": 0,
            "offset": 0,
            "timestamp": 1,
            "headers": {"a": "b"},
        },
    }
    with world() as api:
        never_5xx(api, "POST", "/v1/policies/explain", changed(whole, data))


@given(st.binary(max_size=64), st.integers(1, 1_000))
def test_partition_is_one_of_the_topic(key: bytes, partitions: int) -> None:
    assert 0 <= murmur2(key) < 1 << 32
    assert 0 <= partition_of(key, partitions) < partitions


@given(st.binary(max_size=64))
def test_murmur2_by_the_book(key: bytes) -> None:
    assert murmur2(key) == java_murmur2(key)


def java_murmur2(data: bytes) -> int:
    """Utils.murmur2 transcribed line by line, with Java's signed ints."""

    def int32(number: int) -> int:
        return (number + (1 << 31)) % (1 << 32) - (1 << 31)

    def shifted(number: int, bits: int) -> int:
        return (number & 0xFFFFFFFF) >> bits

    length = len(data)
    m = 0x5BD1E995
    h = int32(0x9747B28C) ^ length
    for i in range(length // 4):
        i4 = i * 4
        k = int32(data[i4] + (data[i4 + 1] << 8) + (data[i4 + 2] << 16) + (data[i4 + 3] << 24))
        k = int32(k * m)
        k ^= shifted(k, 24)
        k = int32(k * m)
        h = int32(h * m)
        h ^= k
    rest = length & ~3
    if length % 4 == 3:
        h ^= data[rest + 2] << 16
    if length % 4 >= 2:
        h ^= data[rest + 1] << 8
    if length % 4 >= 1:
        h ^= data[rest]
        h = int32(h * m)
    h ^= shifted(h, 13)
    h = int32(h * m)
    h ^= shifted(h, 15)
    return h & 0xFFFFFFFF
