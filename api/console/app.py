"""The console as an ASGI application: from a request to the page of a viewer.

A request passes: its path -> log-in (session) -> form token -> GET /v1/whoami -> the screen. Whatever the API refuses
becomes a page that says why.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from api.console import log_in, static
from api.console.counts import counts_of
from api.console.page import (
    CSRF_FIELD,
    ROOT,
    ConsoleOptions,
    Page,
    Refused,
    Screen,
    compile_first,
    cookie_name,
    read_form,
)
from api.console.pages import about, changes, forecast, messages, overview, parts, search, send, targets
from api.console.pages.failures import groups, letters, quarantine, redrives
from api.console.pages.rules import policies, schedules
from api.console.rest import LogInEnded, Refusal, Rest, as_sent
from api.console.session import Session
from api.console.words import now_ms
from api.problems import log_failure
from sidecar.overview.seen import Seen

SCREENS: Final[Sequence[Screen]] = (
    *overview.SCREENS,
    *forecast.SCREENS,
    *search.SCREENS,
    *targets.SCREENS,
    *quarantine.SCREENS,
    *about.SCREENS,
    *groups.SCREENS,
    *letters.SCREENS,
    *redrives.SCREENS,
    *messages.SCREENS,
    *send.SCREENS,
    *changes.SCREENS,
    *policies.SCREENS,
    *schedules.SCREENS,
)
NOT_DONE: Final = "Not done"
CARRIED: Final = frozenset(
    {CSRF_FIELD, "etag", "idempotency_key", "token", "count", "ids", "letter", "masked"}
)  # by forms
NAMED: Final = frozenset({"id", "source", "partition", "kind", "name", "version", "action", "topic", "fingerprint"})
POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


class Console:
    """Pages over an API. `known` is the last look at the group, if there is one."""

    def __init__(self, api: ASGIApp, options: ConsoleOptions, known: Callable[[], Seen | None]) -> None:
        self._api = api
        self._known = known
        self._options = options
        self._cookie = cookie_name(options.group)

    def application(self) -> ASGIApp:
        """To be mounted at `ROOT`."""
        screens = (*SCREENS, *(parts.SCREENS if self._options.parts else ()))
        routes = [
            Route("/static/{hash}/{name:path}", static.serve),
            Route("/log-in", self._guarded(log_in.form), methods=["GET"]),
            Route("/log-in", self._guarded(log_in.enter), methods=["POST"]),
            Route("/log-in/provider", self._guarded(log_in.to_provider), methods=["GET"]),
            Route("/log-in/returned", self._guarded(log_in.from_provider), methods=["GET"]),
            Route("/log-out", self._leave, methods=["POST"]),
            Route("/events", self._events, methods=["GET"]),
            *(Route(one.path, self._shown(one), methods=[one.method]) for one in screens),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._not_there})

    def _shown(self, screen: Screen) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            if log_in.is_part_of_another_site(request):
                return Response(None, 403)
            page = self._page(request)
            if page is None:
                return await self._to_log_in(request)
            try:
                await self._enter(page, screen)
                answer = await screen.show(page)
            except Refused as refused:
                answer = _refused(page, 403, NOT_DONE, str(refused))
            except LogInEnded:
                return await self._to_log_in(request)
            except Refusal as refusal:
                answer = _refused(page, refusal.status, str(refusal.problem.get("title") or NOT_DONE), refusal.detail)
            except Exception as error:  # noqa: BLE001 - a person gets a page with what was written, whatever it was
                log_failure(error)
                answer = _refused(page, 500, NOT_DONE, "This page failed inside tickover; its log says where.")
            return self._kept(page, answer)

        return show

    async def _events(self, request: Request) -> ASGIApp:
        """Events of what changes, for the script of a page: asking is nobody's presence, and the session stays."""
        if log_in.is_from_elsewhere(request):
            return Response(None, 403)
        page = self._page(request)
        if page is None:
            return Response(None, 401)
        last_id = request.headers.get("last-event-id")
        return page.rest.passed_on("/v1/events", request.url.query, {"last-event-id": last_id} if last_id else {})

    async def _leave(self, request: Request) -> Response:
        """Log out; a session that has ended by itself is forgotten, too, with its token."""
        page = self._page(request)
        if page is not None:
            return await self._guarded(log_in.leave)(request)
        page = self._nobodys(request)
        try:
            log_in.refuse_foreign(page)
        except Refused as refused:
            return self._kept(page, _refused(page, 403, NOT_DONE, str(refused)))
        return await log_in.leave(page)

    def _guarded(self, show: Callable[[Page], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Pages that need no log-in."""

        async def guarded(request: Request) -> Response:
            page = self._page(request) or self._nobodys(request)
            try:
                if request.method == "POST":
                    await self._take_form(page)
                answer = await show(page)
            except Refused as refused:
                answer = _refused(page, 403, NOT_DONE, str(refused))
            return self._kept(page, answer)

        return guarded

    def _page(self, request: Request) -> Page | None:
        """The page of a session that goes on; None: log in first."""
        now_s, options = now_ms() // 1_000, self._options
        session = Session.of_cookie(request.cookies.get(self._cookie, ""))
        if session is not None and bool(session.token) != options.authenticates:
            session = None
        if session is None and not options.authenticates:
            session = Session.begin("", now_s)
        # Without tokens nobody has logged in, so that no log-in ends: a form that was left open still counts.
        if session is None or (options.authenticates and session.is_over(now_s, options.idle_s, options.longest_s)):
            return None
        if request.method == "POST" or "hx-request" not in request.headers:
            session = session.seen(now_s)  # what a page asks by itself, always by GET, is nobody's presence
        return self._page_of(request, session)

    def _nobodys(self, request: Request) -> Page:
        return self._page_of(request, Session.begin("", now_ms() // 1_000))

    def _page_of(self, request: Request, session: Session) -> Page:
        below = _path_below(request.scope, self._options.path)
        request.scope["console_path"] = "" if below == "/" else below
        return Page(request, self._options, Rest(self._api, request, session.token), session)

    async def _enter(self, page: Page, screen: Screen) -> None:
        if screen.method == "POST":
            await self._take_form(page)
        page.who = await page.get("/v1/whoami")
        if page.may("read"):
            page.counts = counts_of(self._known())
        if not page.may(screen.role):
            raise Refused(f"This needs the role {screen.role}, and yours is {page.who.get('role') or 'none'}.")

    async def _take_form(self, page: Page) -> None:
        page.fields = await read_form(page.request)
        page.form = dict(page.fields)
        log_in.refuse_foreign(page)
        if not log_in.is_own(page.form.get(CSRF_FIELD, ""), page):
            raise Refused("This form is of another session, or of an older one. Open the page again, and repeat it.")

    def _kept(self, page: Page, answer: Response) -> Response:
        """Let the page show what it is made of; keep the session in the browser, written again when it has changed."""
        answer.headers.setdefault("Content-Security-Policy", POLICY)
        answer.headers.setdefault("Referrer-Policy", "same-origin")  # else a browser says `Origin: null` with a form
        if not page.session.token and self._options.authenticates:
            return answer
        if page.session.cookie != page.request.cookies.get(self._cookie) and self._cookie not in answer.headers.get(
            "set-cookie", ""
        ):
            log_in.keep(page, answer)
        return answer

    async def _to_log_in(self, request: Request) -> Response:
        """To the log-in and back. Whoever has sent a form is told instead, with what was written in it."""
        page = self._nobodys(request)
        if log_in.is_from_elsewhere(request):
            return self._kept(page, log_in.again(page))
        if request.method == "POST":
            return self._kept(page, await _ended(page))
        there = (page.path or "/") + (f"?{request.url.query}" if request.url.query else "")
        if "hx-request" in request.headers:  # a part of a page: all of it goes to the log-in
            return Response(None, 401, {"HX-Redirect": page.url("/log-in", next=there)})
        answer = RedirectResponse(page.location("/log-in", next=there), 303)
        if self._cookie in request.cookies:
            log_in.forget(page, answer)
        return answer

    async def _not_there(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        page = self._page(request) or self._nobodys(request)
        return self._kept(page, _refused(page, error.status_code, "Not there", "There is no such page."))


def _path_below(scope: Scope, proxy_path: str) -> str:
    """Path below the console's, quoted as the browser has sent it: `a%2Fb` is one step, `a/b` are two."""
    mounted = scope.get("root_path", "")
    below = str(scope["path"]).removeprefix(mounted)
    raw = scope.get("raw_path") or b""
    for outer in (f"{proxy_path}{mounted}".encode(), mounted.encode()):
        if raw.startswith(outer) and unquote(raw[len(outer) :]) == below:
            return as_sent(raw[len(outer) :])
    return quote(below)  # the part above it was sent in another way, say /%75i


async def _ended(page: Page) -> Response:
    """A form came after its log-in had ended."""
    try:
        log_in.refuse_foreign(page)
        page.fields = await read_form(page.request)
    except Refused as refused:
        return _refused(page, 403, NOT_DONE, str(refused))
    return _refused(page, 401, NOT_DONE, "The log-in has ended. Log in, open the page again, and repeat it.", True)


def _refused(page: Page, status: int, title: str, detail: str, logs_in: bool = False) -> Response:
    """A page that says why something was not done, and what was written in the form."""
    return page.show("refused.html", status, title=title, detail=detail, written=_written(page), logs_in=logs_in)


def _written(page: Page) -> list[tuple[str, str]]:
    """Fields that somebody would have to write again; none where a form only names what it acts on."""
    fields = [(name, text) for name, text in page.fields if text.strip() and name not in CARRIED]
    return fields if any(name not in NAMED for name, _ in fields) and page.path != log_in.LOG_IN else []


def install(api: Starlette, options: ConsoleOptions) -> None:
    """Show the console of `api` at `ROOT`."""
    compile_first()
    api.add_route(ROOT, _begin, include_in_schema=False)
    api.mount(ROOT, Console(api, options, api.state.overviews.known).application())


async def _begin(request: Request) -> Response:
    return RedirectResponse(f"{ROOT}/", 307)
