"""A message like one that is there: as it was, or a word that it is not."""

from collections.abc import Iterator

import pytest

from sidecar.lookup.query import row_of
from sidecar.model.record import Headers, TopicPartition
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api.console.test_edit_forms import Fields
from tests.unit.api.console.test_forms import Browser, session
from tests.unit.api_world import NOW_MS, REMINDERS, World, world
from tests.unit.change_world import held

HERE = TopicPartition("reminders", 0)
ID: Headers = [("tickover-id", b"a"), ("tickover-delay", b"1h")]


@pytest.fixture
def api() -> Iterator[World]:
    with world(console=OPTIONS) as api:
        api.add(REMINDERS)
        api.sender.topics["push"] = 1
        yield api


def like(api: World, key: bytes, value: bytes, headers: Headers) -> tuple[Browser, dict[str, str], str]:
    """A viewer, the fields of the form as a browser sends them, and the page."""
    api.held.rows = [row_of(HERE, held(0, NOW_MS + 60_000, "a", headers=headers), "wheel") | {"target": "push"}]
    api.letters.add("reminders", [*ID, *headers], key=key, value=value)
    viewer = Browser(api, session())
    page = viewer.get("/send?duplicate=a&source=reminders&partition=0")
    assert page.status_code == 200, page.text
    form = Fields()
    form.feed(page.text)
    return viewer, {name: text for name, text in form.sent.items() if name not in ("q", "csrf")}, page.text


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", b"v", [("tenant", b"acme")]),
        (b"two\nlines", b"\nthree\n\n", [("empty", b""), ("a", b"b=c")]),
        (b"[1]", b'{"n": 1}', []),
    ],
)
def test_it_is_sent_as_it_was(api: World, key: bytes, value: bytes, headers: Headers) -> None:
    viewer, fields, page = like(api, key, value, headers)
    assert "written anew" not in page
    assert viewer.post("/send", fields).status_code == 200
    [sent] = api.sender.sent
    assert (sent.key, sent.value) == (key, value)
    assert [header for header in sent.headers if not header[0].startswith("tickover-")] == headers


@pytest.mark.parametrize("headers", [[("my-secret", b"s")], [("a", b'{"secret": "s"}')]])
def test_a_mask_is_not_sent(api: World, headers: Headers) -> None:
    viewer, fields, page = like(api, b"k", b"v", headers)
    assert "written anew" in page
    refused = viewer.post("/send", fields)
    assert refused.status_code == 422
    assert "would be sent so" in refused.text
    assert api.sender.sent == []
    fields = {**fields, "headers": "my-secret=new", "value": "v"}
    assert viewer.post("/send", fields).status_code == 200


def test_whoever_means_three_stars_sends_them(api: World) -> None:
    fields = {"target": "push", "value": "***", "idempotency_key": "k"}
    assert Browser(api, session()).post("/send", fields).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [[("a=b", b"c")], [("a", b"b\nc=d")], [("a", b"b\rc")], [("a", b"\xff")], [("a", b"\0")]],
)
def test_a_header_that_no_line_can_be_is_left_out_and_told(api: World, headers: Headers) -> None:
    viewer, fields, page = like(api, b"k", b"v", [*headers, ("kept", b"1")])
    assert "written anew" in page
    assert viewer.post("/send", fields).status_code == 200
    [sent] = api.sender.sent
    assert [header for header in sent.headers if not header[0].startswith("tickover-")] == [("kept", b"1")]


def test_a_key_of_json_is_told_to_be_perhaps_another(api: World) -> None:
    _, _, page = like(api, b'{"n":1}', b"v", [])
    assert "another key" in page
