"""Editing a dead letter by a form: what nobody has touched stays as it was, whatever is in it."""

import html
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from sidecar.model.record import Headers
from sidecar.operations.dead_letters.edit import Edit
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api.console.test_forms import Browser, session
from tests.unit.api_world import World, world
from tests.unit.letter_world import dead

EDIT = "/dead-letters/orders-dlq/0/0/edit"
JSON = b'{"n": 1, "text": "a\\u2028b", "secret": "s3cr3t"}'


class Fields(HTMLParser):
    """Fields of a page's forms as a browser sends them, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, str] = {}
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input":  # of one line: what ends a line is taken out
            self.sent[given.get("name") or ""] = (given.get("value") or "").replace("\n", "").replace("\r", "")
        elif tag == "textarea":
            self._inside = given.get("name") or ""
            self.sent[self._inside] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            text = self.sent[self._inside].removeprefix("\n").replace("\r\n", "\n").replace("\r", "\n")
            self.sent[self._inside] = text.replace("\n", "\r\n").replace("\0", "\ufffd")
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.sent[self._inside] += data


@pytest.fixture
def api() -> Iterator[World]:
    with world(console=OPTIONS) as api:
        api.sender.topics["orders"] = 1
        yield api


def edited(api: World, **changed: str) -> Edit | None:
    """The edit of the plan that comes of a form in which only this was changed; None: nothing was."""
    viewer = Browser(api, session())
    page = viewer.get(EDIT)
    assert page.status_code == 200
    form = Fields()
    form.feed(page.text)
    fields = {name: text for name, text in form.sent.items() if name in ("key", "value", "headers")}
    answer = viewer.post(EDIT, {**fields, **{name: fields[name] + text for name, text in changed.items()}})
    if answer.status_code != 303:
        assert "Nothing was changed" in html.unescape(answer.text), answer.text
        return None
    [plan] = api.redriving.plans.redrives.values()
    found: Any = plan.plan.edit
    assert isinstance(found, Edit)
    return found


LETTERS: list[tuple[Headers, bytes | None, bytes | None]] = [
    ([("trace", b"7")], b"k", b"v"),
    ([], b'{"tenant": "a", "n": 1}', JSON),
    ([], b"two\nlines", b"two\nlines\n"),
    ([], b"a\rb", b"a\r\nb"),
    ([], b"a\0b", b"a\0b"),
    ([], b"\xff", b"\xff"),
    ([], None, None),
    ([], b"[1]", b'["\\ud800"]'),
    ([], b"k", b'{"half": "\\ud800"}'),
    ([], b"\n", b"\n\n"),
    ([], b"k", b"&lt;b>&amp;</textarea>"),
    ([("ce:type", b"x: y"), (" padded ", b" value "), ("", b"nameless"), ("a", b"")], b"k", b"v"),
    (
        [("cut", "a\u2028other: b\x0bc\x85d".encode()), ("back", b"a\rb"), ("lines", b"a\nb"), ("nul", b"\0")],
        b"k",
        b"v",
    ),
    ([("twice", b"1"), ("twice", b"2"), ("tail", b"x "), ("none", None)], b"k", b"v"),
]


@pytest.mark.parametrize(("headers", "key", "value"), LETTERS)
def test_what_nobody_has_touched_stays(api: World, headers: Headers, key: bytes | None, value: bytes | None) -> None:
    api.letters.add("orders-dlq", [*dead(), *headers], key=key, value=value)
    assert edited(api) is None


@pytest.mark.parametrize(("headers", "key", "value"), LETTERS)
def test_only_what_was_written_is_changed(api: World, headers: Headers, key: bytes | None, value: bytes | None) -> None:
    api.letters.add("orders-dlq", [*dead(), *headers], key=key, value=value)
    assert edited(api, headers="\r\nadded: 1") == Edit(headers={"added": b"1"})


def test_a_key_of_json_is_changed_when_somebody_writes_in_it(api: World) -> None:
    api.letters.add("orders-dlq", dead(), key=b'{"n": 1}')
    found = edited(api, key=" ")
    assert found is not None
    assert found.key is not None
    assert found.value is None
    assert found.merge is None
