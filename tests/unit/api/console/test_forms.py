"""Forms that are refused, come too late or are sent again: nothing written is lost, and nothing is done twice."""

import html
import itertools
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import pytest

from api.access.auth import Role
from api.console.page import CSRF_FIELD, ROOT, cookie_name
from api.console.session import Session
from api.ports import IdempotencyUnavailable
from sidecar.lookup.query import row_of
from tests.unit.api.access.role_world import token_of, tokens
from tests.unit.api.console.test_addresses import OPTIONS
from tests.unit.api_world import REMINDERS, World, world
from tests.unit.change_world import LANES, held
from tests.unit.letter_world import dead

LONG_AGO_S = OPTIONS.idle_s + 60
WORDS = "words that took an hour"
FIELD = re.compile(r'<(?:input|textarea)[^>]*name="(\w+)"(?:[^>]*value="([^"]*)")?[^>]*>(?:\n?([^<]*)</textarea>)?')


@dataclass
class Browser:
    """Somebody before a console, with what a browser would send."""

    api: World
    cookie: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> httpx.Response:
        return self._ask("GET", path)

    def post(self, path: str, fields: Mapping[str, str], csrf: str | None = None) -> httpx.Response:
        form = {CSRF_FIELD: self.csrf if csrf is None else csrf, **fields}
        return self._ask("POST", path, data=form)

    @property
    def csrf(self) -> str:
        session = Session.of_cookie(self.cookie)
        assert session is not None
        return session.csrf

    def _ask(self, method: str, path: str, **options: object) -> httpx.Response:
        headers = {"cookie": f"{cookie_name(OPTIONS.group)}={self.cookie}", **self.more}
        return self.api.call(method, f"{ROOT}{path}", headers=headers, **options)


def session(token: str = "", ago_s: int = 0) -> str:
    now_s = int(time.time()) - ago_s
    return Session.begin(token, now_s).cookie


def fields_of(page: httpx.Response) -> dict[str, str]:
    """Texts of a page's fields, by name."""
    found = {name: html.unescape(value or text) for name, value, text in FIELD.findall(page.text)}
    return {name: text for name, text in found.items() if text}


@pytest.fixture
def api() -> Iterator[World]:
    """A console without tokens."""
    with world(console=OPTIONS) as api:
        api.add(REMINDERS)
        api.sender.topics["push"] = 1
        yield api


@pytest.fixture
def viewer(api: World) -> Browser:
    return Browser(api, session())


@pytest.fixture
def guarded() -> Iterator[World]:
    """A console with tokens."""
    with (
        tempfile.TemporaryDirectory() as directory,
        world(console=OPTIONS._replace(authenticates=True), tokens=tokens(directory)) as api,
    ):
        api.add(REMINDERS)
        yield api


# --- a log-in that has ended --------------------------------------------------------------------------------------


def test_a_form_after_the_log_in_has_ended_does_nothing_and_shows_what_was_written(guarded: World) -> None:
    late = Browser(guarded, session(token_of(Role.ADMIN), LONG_AGO_S))
    answer = late.post("/policies/_write", {"text": WORDS, "etag": '"1"'})
    assert answer.status_code == 401
    assert WORDS in answer.text
    assert f'href="{ROOT}/log-in"' in answer.text


def test_what_another_site_has_sent_without_a_session_is_not_shown(guarded: World) -> None:
    stranger = Browser(guarded, "", {"sec-fetch-site": "cross-site"})
    answer = stranger.post("/policies/_write", {"text": WORDS}, "x")
    assert answer.status_code == 403
    assert WORDS not in answer.text


def test_a_form_with_a_token_that_counts_no_more_shows_what_was_written(guarded: World) -> None:
    gone = Browser(guarded, session("tickover_gone"))
    answer = gone.post("/targets/pause", {"kind": "target", "name": "push", "reason": WORDS})
    assert answer.status_code == 401
    assert WORDS in answer.text


def test_a_form_of_another_session_shows_what_was_written_but_no_secret(viewer: Browser) -> None:
    answer = viewer.post("/send", {"target": "push", "value": WORDS, "idempotency_key": "s3cr3t"}, "0" * 32)
    assert answer.status_code == 403
    assert WORDS in answer.text
    assert "s3cr3t" not in answer.text


def test_a_button_that_only_names_something_repeats_nothing(viewer: Browser) -> None:
    answer = viewer.post("/act/fire", {"id": "a", "source": "reminders"}, "0" * 32)
    assert "What was written" not in answer.text


def test_who_writes_in_an_editor_is_there(guarded: World) -> None:
    writer = Browser(guarded, session(token_of(Role.ADMIN), 120), {"hx-request": "true"})
    answer = writer.post("/policies/_check", {"text": "name: x"})
    assert answer.status_code == 200
    had = Session.of_cookie(answer.cookies.get(cookie_name(OPTIONS.group)) or "")
    assert had is not None
    assert had.seen_s >= int(time.time()) - 60


def test_a_live_part_is_nobodys_presence_and_leads_to_the_log_in_and_back(guarded: World) -> None:
    watcher = Browser(guarded, session(token_of(Role.READ), 120), {"hx-request": "true"})
    assert "set-cookie" not in watcher.get("/redrives").headers
    late = Browser(guarded, session(token_of(Role.READ), LONG_AGO_S), {"hx-request": "true"})
    answer = late.get("/messages?target=push")
    assert answer.headers["hx-redirect"] == f"{ROOT}/log-in?next=%2Fmessages%3Ftarget%3Dpush"


def test_without_tokens_no_log_in_ends(api: World) -> None:
    left_open = Browser(api, session("", LONG_AGO_S))
    answer = left_open.post("/send", {"target": "push", "value": "x", "delay": "1h", "idempotency_key": "k"})
    assert answer.status_code == 200
    assert len(api.sender.sent) == 1


# --- a refusal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/changes/plan", {"action": "cancel", "target": "push", "rate": "1,000"}),
        ("/changes/plan", {"action": "cancel", "target": "push", "rate": "²"}),
        ("/changes/plan", {"action": "cancel", "target": "push", "delay": "2h"}),
        ("/changes/plan", {"action": "reschedule", "target": "push", "deliver_at": "tomorrow"}),
        ("/changes/plan", {"action": "cancel", "source": "reminders", "partition": "²"}),
        ("/changes/plan", {"action": "cancel", "source": "reminders", "partition": "1" * 5_000}),
        ("/redrives", {"topic": "orders-dlq", "reason": WORDS, "rate": "ten"}),
        ("/redrives", {"topic": "orders-dlq", "target": "orders", "stop_share": "7"}),
        ("/redrives", {"topic": "orders-dlq", "target": "orders"}),
        ("/redrives", {"topic": "orders-dlq", "since": "yesterday"}),
        ("/targets/pause", {"kind": "source", "name": "reminders", "reason": WORDS, "until": "tomorrow"}),
        ("/send", {"target": "push", "value": WORDS, "target_partition": "1" * 5_000}),
        ("/dead-letters/orders-dlq/0/0/edit", {"key": "k", "headers": "no colon", "value": WORDS}),
        ("/dead-letters/orders-dlq/0/0/edit", {"key": "other", "headers": "a: ***", "value": WORDS}),
        ("/quarantine/0/0/send", {"name": "tickover-delay", "header": "10m", "change_value": "yes", "value": WORDS}),
    ],
)
def test_a_refusal_is_told_by_a_form_that_keeps_what_was_written(
    api: World, viewer: Browser, path: str, fields: dict[str, str]
) -> None:
    api.letters.add("orders-dlq", dead())
    api.letters.add("tickover.quarantine", dead("no_policy"))
    answer = viewer.post(path, fields)
    assert 400 <= answer.status_code < 500, answer.text
    kept = fields_of(answer)
    texts = {name: text for name, text in fields.items() if name not in ("action", "kind", "change_value")}
    assert {name: kept.get(name) for name in texts} == texts
    assert f'data-root="{ROOT}/"' in answer.text


def test_a_page_that_is_shown_again_by_a_form_refreshes_itself_where_it_stands(viewer: Browser) -> None:
    answer = viewer.post("/targets/pause", {"kind": "source", "name": "x", "reason": "y", "until": "tomorrow"})
    assert answer.status_code == 422
    assert f'hx-get="{ROOT}/targets"' in answer.text


def test_a_value_that_was_written_and_not_ticked_is_not_left_out(api: World, viewer: Browser) -> None:
    api.letters.add("tickover.quarantine", dead("no_policy", source="reminders/0/1", target="push", delay="1h"))
    for fields in ({"value": WORDS}, {"header": WORDS}):
        answer = viewer.post("/quarantine/0/0/send", {"name": "", **fields})
        assert answer.status_code == 422
        assert WORDS in answer.text
    assert api.resent == []


def test_an_unforeseen_failure_is_a_page_with_what_was_written(
    viewer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("api.console.pages.targets.path_of", fail)
    answer = viewer.post("/targets/pause", {"kind": "target", "name": "push", "reason": WORDS})
    assert answer.status_code == 500
    assert answer.headers["content-type"].startswith("text/html")
    assert WORDS in answer.text


def test_a_search_that_nobody_can_answer_now_does_not_say_that_nothing_is_known(api: World, viewer: Browser) -> None:
    assert viewer.get("/search?q=nobody").status_code == 404
    api.held.down = "it recovers"
    answer = viewer.get("/search?q=nobody")
    assert answer.status_code == 503
    assert "Nothing is known" not in answer.text


def test_an_id_of_several_messages_leads_to_all_of_them(api: World, viewer: Browser) -> None:
    api.held.rows = [row_of(lane, held(number, 5, "twice"), "wheel") for number, lane in enumerate(LANES[:2])]
    answer = viewer.get("/messages/twice")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{ROOT}/messages?id=twice")


def test_a_redrive_is_of_times_as_people_write_them(api: World, viewer: Browser) -> None:
    api.letters.add("orders-dlq", dead())
    times = {"since": "2027-01-15T08:00:00Z", "until": "1800000060000"}
    assert viewer.post("/redrives", {"topic": "orders-dlq", **times}).status_code == 303
    [plan] = api.redriving.plans.redrives.values()
    assert (plan.plan.selection.since, plan.plan.selection.until) == (1_800_000_000_000, 1_800_000_060_000)


def test_a_change_shows_by_which_header_it_chooses_on_demand(viewer: Browser) -> None:
    body = {"action": "cancel", "filter": {"source": "reminders", "header": "tenant=acme"}}
    planned = viewer.api.call("POST", "/v1/changes", json=body)
    page = viewer.get(f"/changes/{planned.json()['id']}").text
    assert "header=***" in page
    assert "Show key and header" in page
    assert "tenant=acme" not in page
    before = len(viewer.api.audited)
    page = viewer.get(f"/changes/{planned.json()['id']}?payload=true").text
    assert "header=tenant=acme" in page
    assert "Show key and header" not in page
    [seen] = viewer.api.audited[before:]
    assert seen["notes"]["payload"]


def test_a_redrive_is_printed_with_its_filter(viewer: Browser) -> None:
    page = html.unescape(viewer.get("/redrives/new?topic=orders-dlq&fingerprint=12&since=5&action=discard").text)
    assert "tickover redrive plan --topic orders-dlq --fingerprint 12 --since 5 --discard<" in page
    assert '{"topic": "orders-dlq", "filter": {"fingerprint": "12", "since": "5"}}' in page


def test_a_message_that_was_just_written_is_waited_for(viewer: Browser) -> None:
    assert viewer.get("/messages/new-one").status_code == 404
    soon = viewer.get("/messages/new-one?done=schedule-run")
    assert soon.status_code == 200
    assert soon.headers["refresh"] == f"2; url={ROOT}/messages/new-one"


# --- sent again ---------------------------------------------------------------------------------------------------


def test_a_message_that_was_changed_after_it_was_sent_can_be_sent_as_another(api: World, viewer: Browser) -> None:
    fields = {"target": "push", "value": "one", "delay": "1h", "idempotency_key": "once"}
    assert viewer.post("/send", fields).status_code == 200
    refused = viewer.post("/send", {**fields, "value": "two"})
    assert refused.status_code == 422
    again = fields_of(refused)
    assert again["value"] == "two"
    assert viewer.post("/send", again).status_code == 200
    assert [record.value for record in api.sender.sent] == [b"one", b"two"]


def test_what_is_left_of_many_is_sent_again_and_the_rest_once(api: World, viewer: Browser) -> None:
    text = "target,value,delay\n" + "".join(f"push,{number},1h\n" for number in range(700))
    begin, begun = api.idempotency.begin, itertools.count()

    async def begin_but_the_second(key: str, fingerprint: bytes, now_ms: int) -> object:
        if next(begun) == 1:
            raise IdempotencyUnavailable("down")
        return await begin(key, fingerprint, now_ms)

    api.idempotency.begin = begin_but_the_second  # type: ignore[assignment,method-assign]
    answer = viewer.post("/send/many", {"text": text, "count": "700", "idempotency_key": "k"})
    assert "500 sent, 0 refused" in answer.text
    assert "Go on with 700" in answer.text
    again = {name: fields_of(answer)[name] for name in ("text", "idempotency_key")} | {"count": "700"}
    answer = viewer.post("/send/many", again)
    assert "700 sent, 0 refused" in answer.text
    assert sorted(int(record.value or b"") for record in api.sender.sent) == list(range(700))


def test_only_a_line_feed_ends_a_message(api: World, viewer: Browser) -> None:
    text = '{"target": "push", "value": "a\u2028b\u0085c", "delay": "1h"}\r\n'
    answer = viewer.post("/send/many", {"text": text, "count": "1", "idempotency_key": "k"})
    assert "1 sent, 0 refused" in answer.text
    assert [record.value for record in api.sender.sent] == ["a\u2028b\u0085c".encode()]


def test_a_value_has_the_line_ends_that_were_written(api: World, viewer: Browser) -> None:
    api.letters.add("tickover.quarantine", dead("no_policy", source="reminders/0/1", target="push", delay="1h"))
    answer = viewer.post("/quarantine/0/0/send", {"change_value": "yes", "value": "a\r\nb"})
    assert answer.status_code == 303, answer.text
    assert [record.value for record in api.resent] == [b"a\nb"]
