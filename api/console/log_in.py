"""Logging in with a token or at a provider (code flow with PKCE), and out; and whose form it is that comes."""

import hmac
import secrets
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from api.access.gate import has_foreign_origin, is_led_here
from api.console.page import ROOT, Page, Refused, SignOn, cookie_name
from api.console.rest import LogInEnded, Refusal, Rest, as_sent
from api.console.session import Session

LOG_IN: Final = "/log-in"
FORM: Final = "tickover-form"  # cookies of who has not logged in yet
BEGUN: Final = "tickover-sign-on"
BEGUN_S: Final = 600
STATE_BYTES: Final = 24
VERIFIER_BYTES: Final = 48


async def form(page: Page) -> Response:
    """The form for a token."""
    if page.session.token:
        return page.go(_next(page))
    return _ask(page, 200, _next(page), "")


async def enter(page: Page) -> Response:
    """Try the token that was pasted."""
    token = page.form.get("token", "").strip().removeprefix("Bearer ").strip()
    if problem := await _try(page, [token] if token else []):
        return _ask(page, 422, page.form.get("next", ""), problem)
    answer = page.go(_safe(page.form.get("next", "")))
    keep(page, answer)
    return answer


async def to_provider(page: Page) -> Response:
    """Send the browser to the provider; a cookie keeps what only this browser may bring back."""
    provider = _provider(page)
    state, verifier = secrets.token_urlsafe(STATE_BYTES), secrets.token_urlsafe(VERIFIER_BYTES)
    try:
        address = await provider.address(state, verifier, _way_back(page))
    except OSError as error:
        return _ask(page, 502, _next(page), f"Nobody can log in there now: {error}.")
    answer = RedirectResponse(address, 303)
    begun = f"{state}.{verifier}.{quote(_next(page), safe='')}"
    # Lax: the way back begins at the provider, and a strict cookie would stay behind.
    answer.set_cookie(
        _begun_cookie(page), begun, max_age=BEGUN_S, path=_path(page), secure=page.is_secure, httponly=True,
        samesite="lax",
    )  # fmt: skip
    return answer


async def from_provider(page: Page) -> Response:
    """Redeem the code that the browser has brought back."""
    provider = _provider(page)
    state, _, rest = page.request.cookies.get(_begun_cookie(page), "").partition(".")
    verifier, _, there = rest.partition(".")
    problem = "This log-in was not begun in this browser, or too long ago. Begin again."
    if verifier and hmac.compare_digest(state.encode(), page.query("state").encode()):
        problem = page.query("error_description") or page.query("error") or "The provider sent no code."
        if code := page.query("code"):
            try:
                tokens = await provider.redeem(code, verifier, _way_back(page))
                problem = await _try(page, tokens)
            except OSError as error:
                problem = f"The provider let nobody in: {error}."
    if problem:
        answer = _ask(page, 422, "", problem)
    else:
        answer = page.go(_safe(unquote(there)))
        keep(page, answer)
    answer.delete_cookie(_begun_cookie(page), path=_path(page))
    return answer


async def _try(page: Page, tokens: Sequence[str]) -> str:
    """Log in with the first token that counts; why none does."""
    problem = "There is no token."
    for token in tokens:
        try:
            session = Session.begin(token, page.now_ms // 1_000)
            await Rest(page.rest.api, page.request, token).get("/v1/whoami")
        except (Refusal, LogInEnded) as refused:
            problem = refused.detail
        except ValueError as error:
            problem = f"This token can't be kept: {error}."
        else:
            page.session = session
            return ""
    return problem


async def leave(page: Page) -> Response:
    """Forget the session; other windows of the browser are logged out, too."""
    answer = RedirectResponse(page.location(LOG_IN), 303)
    forget(page, answer)
    answer.headers["Clear-Site-Data"] = '"cache"'
    return answer


def forget(page: Page, answer: Response) -> None:
    """Take the session's cookie, and the token in it, out of the browser."""
    answer.delete_cookie(cookie_name(page.options.group), path=_path(page))


def keep(page: Page, answer: Response) -> None:
    """Write the session's cookie."""
    name = cookie_name(page.options.group)
    answer.set_cookie(
        name, page.session.cookie, path=_path(page), secure=page.is_secure, httponly=True, samesite="strict"
    )


def is_own(given: str, page: Page) -> bool:
    """Whether a form's token is this session's; before a log-in, that of the form's own cookie."""
    known = _form_session(page) if not page.session.token or page.path == LOG_IN else None
    sessions = (page.session, *((known,) if known is not None else ()))
    return any(hmac.compare_digest(given.encode(), one.csrf.encode()) for one in sessions)


def refuse_foreign(page: Page) -> None:
    """A form that another site has sent. Raises `Refused`."""
    if is_led_here(page.request) or has_foreign_origin(page.request):
        raise Refused("The console takes no form of another site.")


def is_from_elsewhere(request: Request) -> bool:
    """A link of another site has led here, so the browser has kept the session's cookie back."""
    return request.method == "GET" and is_led_here(request)


def is_part_of_another_site(request: Request) -> bool:
    """A page of another site asks for this as its picture, script or frame, which without tokens needs no cookie."""
    return is_from_elsewhere(request) and request.headers.get("sec-fetch-dest", "document") != "document"


def again(page: Page) -> Response:
    """Ask for the same page once more, from here: then the cookie comes."""
    return page.show_then("again.html", page.here(), 0)


def _ask(page: Page, status: int, next: str, problem: str) -> Response:
    """The form for a token. All windows of a browser share its session, so that each of their forms counts."""
    page.session = _form_session(page) or page.session
    answer = page.show("log_in.html", status, next=next, problem=problem)
    _keep_form(page, answer)
    return answer


def _keep_form(page: Page, answer: Response) -> None:
    name = cookie_name(page.options.group, FORM)
    answer.set_cookie(
        name, page.session.cookie, path=_path(page), secure=page.is_secure, httponly=True, samesite="strict"
    )


def _form_session(page: Page) -> Session | None:
    """The one whose token all log-in forms of this browser carry."""
    known = Session.of_cookie(page.request.cookies.get(cookie_name(page.options.group, FORM), ""))
    return known if known is not None and not known.token else None


def _begun_cookie(page: Page) -> str:
    return cookie_name(page.options.group, BEGUN)


def _provider(page: Page) -> SignOn:
    if page.options.sign_on is None:
        raise Refused("Nobody logs in at a provider here: api.oidc.client_id is not set.")
    return page.options.sign_on


def _way_back(page: Page) -> str:
    base = page.base.removesuffix(page.options.path)
    return f"{base}{page.url('/log-in/returned')}"


def _path(page: Page) -> str:
    return f"{page.options.path}{ROOT}"


def _next(page: Page) -> str:
    return _safe(page.query("next"))


def _safe(path: str) -> str:
    """A page of the console to go to, and nowhere else. It is quoted: nothing in it is filled."""
    is_path = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return as_sent(path) if is_path else ""
