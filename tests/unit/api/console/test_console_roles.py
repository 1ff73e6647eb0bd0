"""Every action of the console in every role: whom a page offers it, who may do it, and whose form counts."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest
from starlette.routing import Mount, Route

from api.access.auth import Role
from api.console.app import SCREENS
from api.console.page import CSRF_FIELD, ROOT, ConsoleOptions, Screen, cookie_name
from api.console.pages.rules import policies
from api.console.session import Session
from sidecar.model.record import Outcome
from sidecar.model.stats import TargetFlow
from tests.unit.api.access.role_world import (
    CONTROL,
    OFFSET,
    Given,
    Prepare,
    broken,
    change,
    full_world,
    nothing,
    obeyed,
    redrive,
    redrive_of_another,
    token_of,
)
from tests.unit.api_world import REMINDERS, World

OPTIONS: Final = ConsoleOptions("payments", "", authenticates=True, parts=False, idle_s=1_800, longest_s=43_200)
OPEN: Final = ("/log-in", "/log-out")  # for whoever is there, with a token of the form all the same
MESSAGE: Final = {"id": "a", "source": "reminders", "partition": "3"}
TOCK: Final = "name: tock\ncron: 0 9 * * *\ntarget: push\n"
NAMES: Final = dict.fromkeys(("id", "name", "token", "topic", "fingerprint"), "x")  # where nothing is looked up
MANY: Final = "target,value\npush,hello\n"


@dataclass(frozen=True)
class Action:
    """A form: below `shown` of /ui, for whom, with which fields; `after` is another action whose answer shows it.

    `prepare` is done before the page is shown, `obey` before the form is sent.
    """

    shown: str
    role: Role = Role.WRITE
    fields: Mapping[str, str] = field(default_factory=dict)
    status: int = 303
    prepare: Prepare = nothing
    obey: Prepare = nothing
    after: str = ""
    world: Mapping[str, Any] = field(default_factory=dict)


def second_version(api: World) -> Given:
    api.add({**REMINDERS, "delay": {"default": "1m"}})
    return {"name": "reminders"}


def well(api: World) -> Given:
    """A target whose breaker is closed."""
    api.change_stats(targets={"push": TargetFlow(0, 0.0, "closed")})
    return {}


def group(api: World) -> Given:
    """A failure group of dead letters."""
    bearer = {"authorization": f"Bearer {token_of(Role.READ)}"}
    items = api.call("GET", "/v1/dead-letters/groups?topic=orders-dlq", headers=bearer).json()["items"]
    return {"topic": "orders-dlq", "fingerprint": items[0]["fingerprint"]}


def given(**names: str) -> Prepare:
    """Names of the path, of what is there."""
    return lambda _: names


TICK: Final = given(name="tick")
LETTER: Final = given(topic="orders-dlq", partition="0", offset="0")
ASIDE: Final = given(partition="0", offset="0")
APPROVED: Final[Mapping[str, Any]] = {"approval": "other"}
ACTIONS: Final[Mapping[str, Action]] = {
    "/act/fire": Action(
        "/messages/a", fields=MESSAGE, obey=obeyed({CONTROL: Outcome.EMITTED}, {CONTROL: OFFSET})
    ),
    "/act/cancel": Action(
        "/messages/a", fields=MESSAGE, obey=obeyed({CONTROL: Outcome.APPLIED}, {CONTROL: OFFSET})
    ),
    "/act/reschedule": Action(
        "/messages/a",
        fields={**MESSAGE, "delay": "2h"},
        obey=obeyed({OFFSET: Outcome.MOVED}, {OFFSET: CONTROL}, moved=True),
    ),
    "/changes/abort": Action("/changes/{id}", fields={"id": "{id}"}, prepare=change),
    "/changes/approve": Action("/changes/{id}", fields={"id": "{id}"}, prepare=change, world=APPROVED),
    "/changes/new": Action("/messages", fields={"ids": "a"}, status=200),
    "/changes/plan": Action("/changes/new", fields={"action": "cancel", "source": "reminders"}),
    "/changes/run": Action("/changes/{id}", fields={"id": "{id}", "token": "{token}", "count": "1"}, prepare=change),
    "/dead-letters": Action("/dead-letters", fields={"letter": "orders-dlq/0/0", "action": "discard"}),
    "/dead-letters/{topic}/{partition}/{offset}/edit": Action(
        "/dead-letters/{topic}/{partition}/{offset}/edit", fields={"value": "mended"}, prepare=LETTER
    ),
    "/failures/{topic}/{fingerprint}": Action(
        "/failures/{topic}/{fingerprint}", fields={"state": "known"}, prepare=group
    ),
    "/policies/_check": Action("/policies/_edit", Role.ADMIN, {"text": policies.NEW}, 200),
    "/policies/_write": Action("/policies/_edit", Role.ADMIN, {"text": policies.NEW.replace("name: ", "name: more-")}),
    "/policies/{name}/delete": Action(
        "/policies/{name}", Role.ADMIN, {"etag": "*"}, prepare=given(name="reminders")
    ),
    "/policies/{name}/rollback": Action(
        "/policies/{name}", Role.ADMIN, {"etag": "*", "version": "1"}, prepare=second_version
    ),
    "/quarantine/{partition}/{offset}/send": Action(
        "/quarantine/{partition}/{offset}", fields={"name": "tickover-delay", "header": "10m"}, prepare=ASIDE
    ),
    "/redrives": Action("/redrives/new", fields={"topic": "orders-dlq", "error_class": "Refused"}),
    "/redrives/{id}/abort": Action("/redrives/{id}", prepare=redrive),
    "/redrives/{id}/approve": Action("/redrives/{id}", prepare=redrive_of_another, world=APPROVED),
    "/redrives/{id}/canary": Action("/redrives/{id}", fields={"letters": "1"}, prepare=redrive),
    "/redrives/{id}/run": Action("/redrives/{id}", fields={"count": "3"}, prepare=redrive),
    "/schedules/_write": Action("/schedules/_edit", Role.ADMIN, {"text": TOCK}),
    "/schedules/{name}/delete": Action("/schedules/{name}", Role.ADMIN, {"etag": "*"}, prepare=TICK),
    "/schedules/{name}/run": Action("/schedules/{name}", fields={"idempotency_key": "once"}, prepare=TICK),
    "/send": Action("/send", fields={"target": "push", "value": "hello", "idempotency_key": "once"}, status=200),
    "/send/many": Action(
        "/send/many", fields={"text": MANY, "count": "1", "idempotency_key": "once"}, status=200, after="/send/try"
    ),
    "/send/try": Action("/send/many", fields={"text": MANY}, status=200),
    "/targets/close-breaker": Action("/targets", Role.ADMIN, {"name": "push"}, prepare=broken),
    "/targets/open-breaker": Action("/targets", Role.ADMIN, {"name": "push"}, prepare=well),
    "/targets/pause": Action("/targets", Role.ADMIN, {"kind": "schedule", "name": "tick", "reason": "a release"}),
    "/targets/resume": Action("/targets", Role.ADMIN, {"kind": "target", "name": "push"}),
}  # fmt: skip


def plain(path: str) -> str:
    """A path without the kinds of its parameters."""
    return re.sub(r":\w+}", "}", path)


def posts() -> list[str]:
    """Paths of the console that take a form, as the application has them."""
    with full_world(console=OPTIONS) as api:
        [console] = [route for route in api.app.routes if isinstance(route, Mount) and route.path == ROOT]
        routes = [route for route in console.routes if isinstance(route, Route)]
        return sorted(plain(route.path) for route in routes if "POST" in (route.methods or ()))


@dataclass
class Viewer:
    """Somebody who has logged in to a console."""

    api: World
    role: Role

    def __post_init__(self) -> None:
        self.session = Session.begin(token_of(self.role), int(time.time()))

    def get(self, path: str) -> httpx.Response:
        return self._ask("GET", path)

    def post(self, path: str, fields: Mapping[str, str], csrf: str | None) -> httpx.Response:
        form = {**fields, **({} if csrf is None else {CSRF_FIELD: csrf})}
        return self._ask("POST", path, data=form)

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        cookie = f"{cookie_name(OPTIONS.group)}={self.session.cookie}"
        return self.api.call(method, f"{ROOT}{path}", headers={"cookie": cookie}, **options)


def done(api: World) -> list[str]:
    """Actions of the audit that were done."""
    return [record["action"] for record in api.audited if record["outcome"] == "done"]


@contextmanager
def visited(action: Action) -> Iterator[tuple[World, Given]]:
    """A console in which the action can be done, and names of its path and fields."""
    with full_world(console=OPTIONS, **action.world) as api:
        names = action.prepare(api)
        try:
            yield api, names
        finally:
            api.changing.changes.crew.stop()
            api.redriving.redrives.crew.stop()


def filled(fields: Mapping[str, str], names: Given) -> dict[str, str]:
    return {name: text.format(**names) if text.startswith("{") else text for name, text in fields.items()}


def test_no_action_is_left_out() -> None:
    assert posts() == sorted([*ACTIONS, *OPEN]), "say in ACTIONS where a new form is shown, and for whom"


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_is_offered_to_who_may_do_it_and_refused_to_others(name: str) -> None:
    action = ACTIONS[name]
    with visited(action) as (api, names):
        path, viewers = name.format(**names), {role: Viewer(api, role) for role in Role}
        offered = {role for role in Role if is_offered(path, page_of(action, viewers[role], names))}
        assert offered == {role for role in Role if role >= action.role}
        action.obey(api)
        fields = filled(action.fields, names)

        for role in set(Role) - offered:
            api.audit.sent.clear()
            refused = viewers[role].post(path, fields, viewers[role].session.csrf)
            assert refused.status_code == 403
            assert f"This needs the role {action.role.name.lower()}" in refused.text
            assert done(api) == []
        answer = viewers[action.role].post(path, fields, viewers[action.role].session.csrf)
        assert answer.status_code == action.status, answer.text


def is_offered(path: str, page: str) -> bool:
    """Whether a form or a button of the page posts to this path of /ui."""
    return any(f'{attribute}="{ROOT}{path}"' in page for attribute in ('method="post" action', "formaction"))


def page_of(action: Action, viewer: Viewer, names: Given) -> str:
    """The page with its form, for who may see it."""
    if action.after:
        return viewer.post(action.after, ACTIONS[action.after].fields, viewer.session.csrf).text
    page = viewer.get(action.shown.format(**names))
    assert page.status_code == 200 or (viewer.role < action.role and page.status_code == 403)
    return page.text


@pytest.mark.parametrize("name", ["/changes/run", "/redrives/{id}/run"])
def test_a_live_part_whose_work_has_come_to_a_step_has_its_page_read_again(name: str) -> None:
    with visited(ACTIONS[name]) as (api, names):
        path, viewer = ACTIONS[name].shown.format(**names), Viewer(api, Role.READ)
        assert "hx-refresh" not in viewer.get(path).headers
        api.client_headers["hx-request"] = "true"
        assert viewer.get(path).headers["hx-refresh"] == "true"


@pytest.fixture(scope="module")
def seen() -> Iterator[World]:
    """A console that nothing is done to."""
    with full_world(console=OPTIONS) as api:
        yield api


@pytest.mark.parametrize("kind", ["none", "empty", "wrong", "of another session"])
@pytest.mark.parametrize("name", [*ACTIONS, *OPEN])
def test_a_form_without_its_sessions_token_is_refused(name: str, kind: str, seen: World) -> None:
    viewer, action = Viewer(seen, Role.ADMIN), ACTIONS.get(name, Action(name, fields={"token": token_of(Role.ADMIN)}))
    csrf = {"none": None, "empty": "", "wrong": "0" * 32, "of another session": Viewer(seen, Role.ADMIN).session.csrf}
    path = re.sub(r"{(partition|offset)}", "0", name).format(**NAMES)
    seen.audit.sent.clear()

    answer = viewer.post(path, filled(action.fields, NAMES), csrf[kind])

    assert answer.status_code == 403
    assert "This form is of another session" in answer.text
    assert "set-cookie" not in answer.headers
    assert done(seen) == []


@pytest.mark.parametrize("one", [one for one in SCREENS if one.method == "GET" and "{" not in one.path])
def test_a_page_is_linked_for_and_shown_to_who_may_see_it(one: Screen, seen: World) -> None:
    for role in Role:
        viewer, may = Viewer(seen, role), role >= Role[one.role.upper()]
        assert (viewer.get(one.path).status_code != 403) == may, role
        assert may or f'href="{ROOT}{one.path}"' not in viewer.get("/").text
