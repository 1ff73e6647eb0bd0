"""Links, forms and refreshes of every screen lead where they say, whatever names are in them."""

import html
import re
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from starlette.routing import Match, Mount, Route
from typer.main import get_command

from api.console.page import ROOT, ConsoleOptions
from api.console.rest import address_of, as_sent, path_of
from sidecar.cli.app import app
from sidecar.lookup.query import row_of
from sidecar.model.condition import Pausable, Pause, PauseKind
from sidecar.model.record import TopicPartition
from sidecar.overview.seen import Seen
from tests.source import ROOT as SOURCE
from tests.unit.api_world import NOW_MS, REMINDERS, World, world
from tests.unit.change_world import held
from tests.unit.letter_world import dead
from tests.unit.report_world import report, seen
from tests.unit.schedule_world import schedule

OPTIONS = ConsoleOptions(group="payments", path="", authenticates=False, parts=True, idle_s=1_800, longest_s=43_200)
NAMES = (
    "a?b",
    "a#b",
    "100%",
    "%41%2F",
    "a b+c",
    "größe/é",
    "a/../b",
    "//a",
    "a&b=c;d",
    "{id}{x:path}",
    "\"'><b>",
    "-x",
)
PAGES_MAX = 600
ADDRESS = re.compile(r'(?:href|action|formaction|hx-get|hx-post)="([^"]*)"')
SCREENS = (
    "/", "/replicas", "/messages", "/send", "/failures", "/dead-letters", "/redrives", "/redrives/new", "/quarantine",
    "/policies", "/schedules", "/targets", "/changes", "/changes/new", "/forecast", "/audit", "/settings",
)  # fmt: skip

COMMAND = re.compile(r'(?:data-copy="|<code[^>]*>)(tickover [^"<]*)')
TIMES = "since=2026-01-01T00:00:00Z&until=2027-01-01T00:00:00Z"
DUE = "due_from=2026-01-01T00:00:00Z&due_to=2027-01-01T00:00:00Z"
LETTERS = "error=e&error_class=c&reason=attempts_exhausted&policy=p&id=i&key_prefix=k&header=a%3Db"
FILTERED = (
    f"/messages?source=reminders&partition=3&policy=p&target=push&id=a&key_prefix=k&header=a%3Db&error_class=X&{DUE}",
    f"/audit?caller=a&action=b&outcome=refused&{TIMES}",
    "/forecast?source=reminders&minutes=30",
    f"/dead-letters?topic=orders-dlq&{LETTERS}&since=1767225600000&until=1798761600000&open=true",
    f"/quarantine?{LETTERS}&open=true",
    f"/failures?topic=orders-dlq&{LETTERS}",
    f"/changes/new?action=reschedule&source=reminders&partition=3&header=a%3Db&{DUE}",
    f"/redrives/new?topic=orders-dlq&fingerprint=0&reason=r&{TIMES}&rate=5&stop_share=0.1&target=t&ramp=3s&watch=3s",
    "/settings?all=true",
)


@pytest.fixture(scope="module")
def api() -> Iterator[World]:
    with world(console=OPTIONS) as api:
        fill(api)
        yield api


def fill(api: World) -> None:
    api.add(REMINDERS)
    api.sender.topics |= {"push": 1, "reports": 1}
    api.schedules.store.put(schedule(name="tick"), "reminders", 0, "me")
    for number, name in enumerate(NAMES):
        record = held(number, NOW_MS + 60_000, name, policy=name)
        api.held.rows.append(row_of(TopicPartition("reminders", 3), record, "wheel") | {"target": name})
        error = dead(error_class=name, error_message=name, redrive_source="orders-dlq/0/0", origin=name)
        api.letters.add("orders-dlq", error)
        api.letters.add("tickover.quarantine", dead("no_policy", detail=name))
        api.pauses.store.put(Pausable(PauseKind.TARGET, name), Pause("why", name, NOW_MS, -1))
    api.group.seen = hostile_group()
    assert api.call("POST", "/v1/changes", json={"action": "cancel", "filter": {"ids": ["a?b"]}}).is_success
    assert api.call("POST", "/v1/redrives", json={"topic": "orders-dlq", "letters": ["orders-dlq/0/0"]}).is_success


def hostile_group() -> Seen:
    return seen(*(report(name, wheel=5) for name in NAMES[:3]))


def addresses(page: httpx.Response) -> set[str]:
    return {html.unescape(one) for one in ADDRESS.findall(page.text)}


def shown(api: World, path: str) -> httpx.Response:
    """A page, or the one that it leads to."""
    page = api.call("GET", path)
    return shown(api, page.headers["location"]) if page.status_code in (303, 307) else page


@pytest.fixture(scope="module")
def found(api: World) -> dict[str, httpx.Response]:
    """Every page that links lead to, by its address."""
    found: dict[str, httpx.Response] = {}
    left = [f"{ROOT}{path}" for path in SCREENS]
    while left:
        path = left.pop().partition("#")[0]
        if path and path not in found and not path.startswith(f"{ROOT}/static"):
            assert len(found) < PAGES_MAX, sorted(found)
            found[path] = shown(api, path)
            left += [one for one in links(found[path]) if one not in found]
    return found


def links(page: httpx.Response) -> Iterator[str]:
    """Links that show another thing: filters and times of the same list are left out."""
    here = page.url.path
    for one in re.findall(r'href="([^"]*)"', page.text):
        address = html.unescape(one)
        if address.startswith(ROOT) and httpx.URL(address).path != here and "zone=" not in address:
            yield address


def test_every_link_leads_to_a_page(found: dict[str, httpx.Response]) -> None:
    assert {path: page.status_code for path, page in found.items() if page.status_code != 200} == {}
    for name in NAMES:
        page = found[f"{ROOT}/messages/{quote(name, safe='')}?source=reminders&partition=3"]
        assert f"<h1>{html.escape(name).replace('&#x27;', '&#39;').replace('&quot;', '&#34;')}</h1>" in page.text


def test_every_command_is_one_of_the_command_line(api: World, found: dict[str, httpx.Response]) -> None:
    pages = {**found, **{path: api.call("GET", f"{ROOT}{path}") for path in FILTERED}}
    assert {path: page.status_code for path, page in pages.items() if page.status_code != 200} == {}
    commands = {html.unescape(one) for page in pages.values() for one in COMMAND.findall(page.text)}
    assert len(commands) > 200
    assert {command: fault for command in commands if (fault := fault_of(shlex.split(command)[1:]))} == {}


def test_a_command_that_is_none_is_found() -> None:
    assert fault_of(["messages", "list", "--traget", "x"])
    assert fault_of(["mesages", "list"])
    assert fault_of(["messages", "get"])


def fault_of(words: list[str]) -> str:
    """Why the command line doesn't take these words."""
    command: Any = get_command(app)
    context, rest = None, words
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"no such command: {words}"
        context = command.make_context(rest[0], [], parent=context, resilient_parsing=True)
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(words[0], list(rest), parent=context)
    except Exception as error:  # noqa: BLE001 - of Typer's own kind
        return f"{type(error).__name__}: {error}"
    return ""


def test_every_form_has_somebody_who_takes_it(api: World, found: dict[str, httpx.Response]) -> None:
    console = next(one for one in api.app.routes if isinstance(one, Mount) and one.path == ROOT)
    takers = [one for one in console.routes if isinstance(one, Route)]
    for page in found.values():
        for form in re.findall(r'method="post" action="([^"]*)"', page.text):
            path = unquote(html.unescape(form)).removeprefix(ROOT)
            scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": []}
            assert any(one.matches(scope)[0] is Match.FULL for one in takers), form


@pytest.mark.parametrize("name", NAMES)
def test_a_page_refreshes_itself(api: World, name: str) -> None:
    path = f"{ROOT}/messages/{quote(name, safe='')}?source=reminders&partition=3"
    page = shown(api, f"{path}&zone=Europe/Berlin")
    assert page.status_code == 200
    assert f"{path}&zone=UTC" in addresses(page)


def test_a_page_under_a_proxys_path_refreshes_itself() -> None:
    with world(console=OPTIONS._replace(path="/tickover"), path="/tickover") as api:
        fill(api)
        for sent in ("/tickover/ui/messages/a%2F..%2Fb", "/ui/messages/a%2F..%2Fb"):
            page = shown(api, f"{sent}?zone=Europe/Berlin")
            assert "/tickover/ui/messages/a%2F..%2Fb?zone=UTC" in addresses(page), sent


@pytest.mark.parametrize("name", ["path", "self", "done", "changed", "template", "query", "values"])
def test_parameters_of_any_name_are_carried_on(api: World, name: str) -> None:
    page = api.call("GET", f"{ROOT}/messages?{name}=x")
    assert page.status_code == 200
    assert any(f"{name}=x" in one for one in addresses(page)) == (name != "done")


def test_whoever_logs_in_is_led_back_to_the_same_name() -> None:
    with world(console=OPTIONS._replace(authenticates=True)) as api:
        there = api.call("GET", f"{ROOT}/messages/a%3Fb%2Fc%7Bid%7D?source=x").headers["location"]
    assert httpx.URL(there).params["next"] == "/messages/a%3Fb%2Fc%7Bid%7D?source=x"


def test_steps_are_quoted_and_slashes_stay_where_they_part() -> None:
    assert path_of("/x/{id}/y", id="a/b?{id}") == "/x/a%2Fb%3F%7Bid%7D/y"
    assert address_of("/x/{place:path}", {"place": "a b/1/2", "z": 1}) == ("/x/a%20b/1/2", {"z": 1})
    assert as_sent('/x/a%2Fb?c=d&e="{f}\u00e9') == "/x/a%2Fb?c=d&e=%22%7Bf%7D%C3%A9"


def test_no_template_puts_a_path_together_by_itself() -> None:
    for template in (SOURCE / "api" / "console" / "templates").glob("*.html"):
        for call in re.findall(r"(?:page\.(?:url|curl|go)\()([^{}]*?\))", template.read_text()):
            assert " ~ " not in call.partition(",")[0], (template.name, call)
