"""One request for a page: its viewer, the API in the viewer's name, and the answer as HTML."""

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.access.gate import host_name
from api.console import commands, static, words
from api.console.counts import Count
from api.console.rest import Query, Refusal, Rest, address_of, query_of
from api.console.session import Session
from api.ports import Limits
from sidecar.model.times import duration
from sidecar.operations.jobs.job import OF_PAYLOAD
from sidecar.settings.api import is_loopback

ROOT: Final = "/ui"
UTC: Final = "UTC"
ZONE_COOKIE: Final = "tickover-zone"
CSRF_FIELD: Final = "csrf"
DONE_FIELD: Final = "done"
DIGITS_MAX: Final = 18  # of a whole number in a field; the API says what is wrong with a longer one
FIELDS_MAX: Final = 20_000  # of a form: a page of messages, selected
ROLES: Final = ("read", "write", "admin")
FIRST: Final = ("parts.html", "layout.html", "log_in.html", "overview.html")  # templates that are compiled at the start

# What an action says when its page is back: the address has the key, never the words.
DONE: Final[Mapping[str, str]] = {
    "paused": "Paused. Every replica holds to it within 2 s.",
    "resumed": "Resumed.",
    "breaker-closed": "A few retries go as probes. The breaker closes if they succeed, and opens for longer if not.",
    "breaker-opened": "Retries wait. After the breaker's time a few go as probes, and it closes if they succeed.",
    "fired": "Fired: it is emitted now.",
    "cancelled": "Cancelled: it will not be emitted.",
    "rescheduled": "Rescheduled.",
    "pending": "Asked for in Kafka. Its owner has not answered yet, and will obey.",
    "aborting": "Its end is asked for.",
    "policy-written": "Saved. Records that come from now on are decided by it.",
    "policy-rolled-back": "Rolled back: a new version equals the earlier one.",
    "policy-deleted": "Deleted. Its versions stay.",
    "schedule-written": "Saved.",
    "schedule-run": "Sent: this is the message.",
    "schedule-deleted": "Deleted. What is written ahead of its time still fires.",
    "approved": "Approved: it may begin.",
    "planned": "Planned. Nothing has been sent.",
    "begun": "Begun.",
    "ended": "Its end was asked for.",
    "sent": "The record was sent to its source, where it is decided anew.",
    "said": "Written down; every replica shows it.",
}


class SignOn(Protocol):
    """A provider at which people log in (`api.access.sign_on.SignOn`). Both raise `OSError` with words for people."""

    async def address(self, state: str, verifier: str, redirect_uri: str) -> str:
        """Where to send the browser, with hashes of the verifier."""

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> Sequence[str]:
        """Tokens for the code that it brought back, of which one may count."""


class Refused(Exception):
    """A form that isn't this session's, is no form, or says what can't be. `detail`: words for people."""

    status = 422

    @property
    def detail(self) -> str:
        return str(self)


class ConsoleOptions(NamedTuple):
    """How the console was set up."""

    group: str
    path: str  # under which a proxy shows all
    authenticates: bool
    parts: bool  # the page of all parts
    idle_s: int
    longest_s: int
    sign_on: "SignOn | None" = None  # where people log in at a provider
    url: str = ""  # scheme and host of browsers; empty: as they ask


@dataclass(slots=True)
class Page:
    """A request for a page by a viewer who is known. `who` is the answer of GET /v1/whoami."""

    request: Request
    options: ConsoleOptions
    rest: Rest
    session: Session
    who: Mapping[str, Any] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    fields: Sequence[tuple[str, str]] = ()
    now_ms: int = field(default_factory=words.now_ms)
    counts: Mapping[str, Count] = field(default_factory=dict)
    at: str = ""  # path of the page whose form was sent, where that page is shown again

    # --- what was asked ---------------------------------------------------------------------------------------

    def query(self, name: str, default: str = "") -> str:
        """One parameter of the address."""
        return self.request.query_params.get(name, default)

    def asked(self, *names: str) -> dict[str, str]:
        """Parameters of these names that the address has."""
        return {name: value for name in names if (value := self.query(name))}

    def listed(self, name: str) -> list[str]:
        """All values of a form's field: checked rows."""
        return [value for field_name, value in self.fields if field_name == name]

    def may(self, role: str) -> bool:
        """Whether the viewer has the role `read`, `write` or `admin`."""
        has = self.who.get("role")
        return has in ROLES and ROLES.index(role) <= ROLES.index(has)

    @property
    def zone(self) -> ZoneInfo:
        """Zone of the page's times: of the address, else of the browser, else UTC."""
        for name in (self.query("zone"), self.request.cookies.get(ZONE_COOKIE, "")):
            try:
                if name:
                    return ZoneInfo(name)
            except (KeyError, ValueError, OSError):
                continue
        return ZoneInfo(UTC)

    # --- the API ----------------------------------------------------------------------------------------------

    async def get(self, path: str, **query: object) -> Any:
        """A document of the API. Raises `Refusal`, which becomes a page that says why."""
        return await self.rest.get(path, **query)

    async def get_if_any(self, path: str, default: Any, **query: object) -> tuple[Any, str]:
        """A document for a part of a page, or the default and why there is none."""
        try:
            return await self.rest.get(path, **query), ""
        except Refusal as refusal:
            return default, refusal.detail

    async def collect(self, path: str, most: int, **query: object) -> tuple[list[dict[str, Any]], bool]:
        """Items of a list, page after page, until there are `most` or no more, and whether that is all of it. Raises
        `Refusal`.
        """
        items: list[dict[str, Any]] = []
        cursor: str | None = ""
        is_whole = True
        while cursor is not None and len(items) < most:
            found = await self.rest.get(path, **query, cursor=cursor)
            items += found["items"]
            cursor, is_whole = found["next"], is_whole and not found.get("partial", False)
        return items[:most], is_whole and cursor is None and len(items) <= most

    # --- the answer -------------------------------------------------------------------------------------------

    def show(self, template: str, status: int = 200, **values: object) -> Response:
        """The page of a template."""
        text = TEMPLATES.get_template(template).render(page=self, now_ms=self.now_ms, **self._filters(), **values)
        content = text.encode(errors="backslashreplace")  # JSON may have half of a surrogate pair
        return HTMLResponse(content, status)

    def show_then(self, template: str, there: str, wait_s: int) -> Response:
        """A page from which the browser goes on by itself, to the address `there`."""
        answer = self.show(template, there=there)
        answer.headers["Refresh"] = f"{wait_s}; url={there}"
        return answer

    def show_settled(self, template: str, **values: Any) -> Response:
        """A page of work that no longer goes on by itself: where a live part has asked, all of it is to be read again,
        as there are other buttons now.
        """
        answer = self.show(template, **values)
        if "hx-request" in self.request.headers:
            answer.headers["HX-Refresh"] = "true"
        return answer

    def go(self, path: str, done: str = "", /, **query: object) -> Response:
        """Show another page, at `path` below /ui; `done` is a key of `DONE`."""
        return RedirectResponse(self.location(path, **{**query, DONE_FIELD: done}), 303)

    def location(self, path: str, /, **query: object) -> str:
        """Address of a page for a header Location, to which the API adds the path of a proxy.

        `{name}` of the path is filled with that value of the query, quoted; `{name:path}` keeps its slashes.
        """
        filled, rest = address_of(path, query)
        asked = query_of(rest)
        return f"{ROOT}{filled or '/'}" + (f"?{asked}" if asked else "")

    def url(self, path: str = "", /, **query: object) -> str:
        """Address of a page, for links. Its path is filled as by `location`."""
        return f"{self.options.path}{self.location(path, **query)}"

    @property
    def wants_payload(self) -> bool:
        """The viewer asks for words that only the role write may see, which is recorded. Not a part that refreshes
        itself: it has none of them.
        """
        return self.query("payload") == "true" and self.may("write") and "hx-request" not in self.request.headers

    def hides_words_of(self, selection: Mapping[str, object]) -> bool:
        """A plan's selection has words that are hidden on this page."""
        return not self.wants_payload and any(name in selection for name in OF_PAYLOAD)

    def here(self, /, **changed: object) -> str:
        """Address of this page with some parameters changed; None or empty leaves one out."""
        had: dict[str, object] = {
            name: self.request.query_params.getlist(name) for name in self.request.query_params if name != DONE_FIELD
        }
        return self.url(self.path, **{**had, **changed})

    @property
    def path(self) -> str:
        """Path of this page below /ui, quoted as it was asked for: empty of the overview."""
        return self.at or str(self.request.scope["console_path"])

    @property
    def done(self) -> str:
        """Words for the action that has just been done."""
        return DONE.get(self.query(DONE_FIELD), "")

    def tickover(self, command: str, options: Mapping[str, object] | None = None, *arguments: str) -> str:
        """The page as a command of tickover."""
        return commands.tickover(command, options, *arguments)

    def curl(self, method: str, path: str, query: Query | None = None, body: object = None) -> str:
        """The page as a call of curl; `{name}` of the path is filled with that value of the query."""
        return commands.curl(self.base, method, path, query, body)

    @property
    def base(self) -> str:
        """Address of the API as browsers reach it, without a slash at its end."""
        scheme = "https" if self.is_secure else "http"
        asked = f"{scheme}://{self.request.headers.get('host', '')}"
        return f"{self.options.url or asked}{self.options.path}"

    @property
    def is_secure(self) -> bool:
        """Whether the browser speaks HTTPS, be it with a proxy in front.

        A form says so in its Origin. Any request does that has Sec-Fetch-Site: browsers send that to HTTPS alone, and
        to this machine.
        """
        if self.request.url.scheme == "https" or self.options.url.startswith("https://"):
            return True
        if origin := self.request.headers.get("origin", ""):
            return origin.startswith("https://")
        name = host_name(self.request)
        is_here = is_loopback(name) or name.lower().endswith(".localhost")
        return "sec-fetch-site" in self.request.headers and not is_here

    def _filters(self) -> dict[str, object]:
        return {
            "absolute": lambda ms: words.absolute(ms, self.zone, self.now_ms),
            "relative": lambda ms: words.relative(ms, self.now_ms),
        }


Show = Callable[[Page], Awaitable[Response]]


class Screen(NamedTuple):
    """A page or an action: `path` below /ui, with `{name}` and `{name:path}` as Starlette has them. `role` is needed
    to be shown it; the API decides all the same.
    """

    path: str
    show: Show
    method: str = "GET"
    role: str = "read"


def screen(path: str, show: Show, role: str = "read") -> Screen:
    """A page."""
    return Screen(path, show, "GET", role)


def action(path: str, act: Show, role: str = "write") -> Screen:
    """An action of a form, which then shows or goes to another page."""
    return Screen(path, act, "POST", role)


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Fields of a form, in order, with the line ends that were written: browsers send two characters for each. Raises
    `Refused`.
    """
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise Refused(f"The form can't be read: {error}.") from None
    return [(name, value.replace("\r\n", "\n")) for name, value in fields]


def is_kept(text: str) -> bool:
    """Whether a text comes back from a field of a page as it was: HTML has no NUL, a form knows one kind of line ends,
    and UTF-8 has no half of a surrogate pair.
    """
    return "\0" not in text and "\r" not in text and text == text.encode(errors="replace").decode()


def whole(text: str) -> int | str:
    """The number that a field has; what is none stays as it was written, so that the API says what is wrong with it."""
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return int(text) if is_number else text


def cookie_name(group: str, of: str = "tickover") -> str:
    """Name of a cookie of this group: browsers share cookies among all ports of a host."""
    return f"{of}-{zlib.crc32(group.encode()):08x}"


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters |= {name: getattr(words, name) for name in ("count", "short", "size", "rfc3339", "moments", "pretty")}
    made.filters["duration"] = duration
    made.globals |= {"static": static.address_of, "body_max": Limits().body_bytes}
    return made


TEMPLATES: Final = _environment()


def compile_first() -> None:
    """Compile what every page is made of, and what is opened first: 70 ms of CPU that no viewer waits for.

    All templates would be 410 ms of each start; one of the others is at most 28 ms, once, for who opens it first.
    """
    for name in FIRST:
        TEMPLATES.get_template(name)
