"""Pictures of docs/console.md: each is of a page as it is, and can be made anew.

make pictures
"""

import os
import re
import struct
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Page

from api.console import words
from sidecar.lookup.query import row_of
from sidecar.model.record import Headers, TopicPartition
from tests.process.api.console.browsing import WIDE, Console
from tests.process.api.console.pages import test_failures, test_forecast, test_overview
from tests.source import ROOT
from tests.unit.api_world import NOW_MS, REMINDERS, World
from tests.unit.change_world import held

PAGE: Final = ROOT / "docs" / "console.md"
PLACE: Final = ROOT / "docs" / "images" / "console"
BYTES_MAX: Final = 150_000
BYTES_OF_ALL_MAX: Final = 1_000_000
COLOURS: Final = 128
HERE: Final = TopicPartition("reminders", 3)
MESSAGES: Final = 40


class Picture(NamedTuple):
    """A page with something on it: how its world is filled, its path, what must be seen on it before it is taken."""

    fill: Callable[[World], None]
    path: str
    seen: str
    act: Callable[[World, Console, Page], object] = lambda *_: None


def messages(api: World) -> None:
    api.add(REMINDERS)
    headers: Headers = [("tenant", b"acme")]
    for number in range(MESSAGES):
        target, due_ms = ("mail", "push", "sms")[number % 3], NOW_MS - 40_000 + number * 47_000
        id = f"invoice/{4_711 + number}"
        record = held(number, due_ms, id, target=target, headers=headers, policy="reminders@1", size=412)
        api.held.rows.append(row_of(HERE, record, "overflow" if number > 20 else "wheel"))
        told: Headers = [("tickover-id", id.encode()), ("tickover-delay", b"1h"), *headers]
        api.letters.add("reminders", told, partition=3, key=b"customer-7", value=b'{"invoice": 4716, "amount": 12}')
    api.held.minutes = {-1: 1_204_331}


def policies(api: World) -> None:
    api.sender.topics["push"] = 1
    api.add(REMINDERS)
    api.add({**REMINDERS, "delay": {"default": "20m", "max": "400d"}})


def plan(api: World, console: Console, page: Page) -> None:
    id = test_failures.plan_a_redrive(console)
    api.redriving.plans.set(id, updated_ms=NOW_MS)
    page.goto(f"{console.url}/ui/redrives/{id}")


def paste(_: World, __: Console, page: Page) -> None:
    page.fill("textarea[name=headers]", "tickover-target: push\ntickover-delay: 90s")


CHART: Final = ".plot canvas"
PICTURES: Final = {
    "overview": Picture(test_overview.fill, "/", CHART),
    "messages": Picture(messages, "/messages", "text=1,204,331 in all"),
    "message": Picture(messages, "/messages/invoice%2F4716?source=reminders&payload=true", "text=Fire now"),
    "failures": Picture(test_failures.fill, "/failures", CHART),
    "redrive": Picture(test_failures.fill, "/redrives", "summary:has-text('Send')", plan),
    "forecast": Picture(test_forecast.fill, "/forecast", CHART),
    "policy-editor": Picture(policies, "/policies/_edit?name=reminders", "#check dl >> text=push", paste),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_of_a_page_that_is_there(
    name: str, api: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "time", SimpleNamespace(time_ns=lambda: NOW_MS * 1_000_000))  # as old as its world
    picture = PICTURES[name]
    picture.fill(api)
    page = console.open(picture.path)
    picture.act(api, console, page)
    page.wait_for_selector(picture.seen)
    if os.environ.get("TICKOVER_TEST_PICTURES"):
        take(page, PLACE / f"{name}.png")
    assert console.problems == []


def take(page: Page, path: Path) -> None:
    """Keep what the window shows, in few colours. Needs Pillow, which the pipeline's packages bring."""
    image: Any = import_module("PIL.Image")
    path.parent.mkdir(exist_ok=True)
    whole = image.open(BytesIO(page.screenshot())).convert("RGB")
    whole.quantize(COLOURS, dither=image.Dither.NONE).save(path, optimize=True)


def test_the_docs_show_each_picture_and_all_are_small() -> None:
    shown = dict(re.findall(r"!\[([^\]]+)\]\(images/console/([\w-]+)\.png\)", PAGE.read_text(encoding="utf-8")))
    kept = {path.stem: path.read_bytes() for path in PLACE.iterdir()}
    assert sorted(shown.values()) == sorted(kept) == sorted(PICTURES)
    for name, data in kept.items():
        assert data[:8] == b"\x89PNG\r\n\x1a\n", name
        assert struct.unpack(">I", data[16:20]) == (WIDE,), name
        assert len(data) <= BYTES_MAX, name
    assert sum(map(len, kept.values())) <= BYTES_OF_ALL_MAX
