"""Times in answers of REST: as epoch milliseconds, and beside each in RFC 3339, in every answer of every call."""

from collections.abc import Iterator
from typing import Any

import pytest

from api.access.auth import Role
from sidecar.model.times import SUFFIX, for_people, rfc_3339, with_times
from tests.unit.api.access.role_world import CALLS, ask
from tests.unit.api_world import NOW_MS, REMINDERS, World, world

DUE_MS = NOW_MS + 60_000
TIME_FROM_MS = 1_000_000_000_000  # whatever is larger is a time: no count, size or offset of this world is


def untold(document: Any, place: str = "") -> Iterator[str]:
    """Places of times that are not told in RFC 3339, too."""
    if isinstance(document, dict):
        for name, value in document.items():
            if isinstance(value, int) and value >= TIME_FROM_MS and document.get(name + SUFFIX) != rfc_3339(value):
                yield f"{place}/{name}"
            yield from untold(value, f"{place}/{name}")
    elif isinstance(document, list):
        for number, item in enumerate(document):
            yield from untold(item, f"{place}/{number}")


@pytest.mark.parametrize("name", sorted(name for name in CALLS if "/v1/" in name and "schemas" not in name))
def test_every_time_of_an_answer_is_told_in_words_too(name: str) -> None:
    for call in CALLS[name]:
        told = ask(name, call, Role.ADMIN)
        assert told.document is None or list(untold(told.document)) == []


@pytest.fixture(name="api")
def api_fixture() -> Iterator[World]:
    with world() as there:
        there.add(REMINDERS)
        yield there


def test_an_answer_that_is_given_again_has_both(api: World) -> None:
    options: dict[str, Any] = {"json": {"target": "push"}, "headers": {"idempotency-key": "k"}}
    first, again = (api.call("POST", "/v1/messages", **options) for _ in range(2))
    assert (again.headers["idempotency-replayed"], again.json()) == ("true", first.json())
    assert first.json()["due_utc"] == "2027-01-15T08:15:00.000Z"


def test_the_description_names_both(api: World) -> None:
    schemas = api.call("GET", "/openapi.json").json()["components"]["schemas"]
    for model in ("AcceptedOut", "ReceiptOut"):
        assert {"due", "due_utc"} <= schemas[model]["properties"].keys()


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (NOW_MS + 7, "2027-01-15T08:00:00.007Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, None),
        (10**18, None),
        (-1, None),
        (None, None),
    ],
)
def test_a_time_in_words(time_ms: int | None, text: str | None) -> None:
    assert rfc_3339(time_ms) == text
    told = with_times({"a": 1, "due": time_ms, "b": 2}, "due", "other")
    assert list(told.items()) == [("a", 1), ("due", time_ms), ("due_utc", text), ("b", 2)]
    assert with_times({**told, "due": 0}, "due")["due_utc"] == rfc_3339(0)
    assert for_people([{"x": told}]) == [{"x": {"a": 1, "due": text or time_ms, "b": 2}}]


def test_for_people_only_times_are_told_otherwise() -> None:
    counts = {"due": 5, "due_utc": 7}  # by topic
    assert for_people(counts) == counts
