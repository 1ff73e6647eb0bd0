"""Logging in with a token, and out; and whose form it is that comes."""

import hmac
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.console.page import ROOT, Page, Refused, cookie_name
from api.console.rest import Refusal, Rest
from api.console.session import Session

FORM_COOKIE: Final = "tickover-form"
OWN_SITE: Final = ("same-origin", "none")


async def form(page: Page) -> Response:
    """The form for a token."""
    if page.session.token:
        return page.go(_next(page))
    answer = page.show("log_in.html", next=_next(page), problem="")
    _keep_form(page, answer)
    return answer


async def enter(page: Page) -> Response:
    """Try the token that was pasted."""
    token = page.form.get("token", "").strip().removeprefix("Bearer ").strip()
    try:
        session = Session.begin(token, page.now_ms // 1_000)
        if not token:
            raise ValueError("there is no token")
        await Rest(page.rest._api, page.request, token).get("/v1/whoami")
    except (Refusal, ValueError) as error:
        problem = error.detail if isinstance(error, Refusal) else f"This can't be a token: {error}."
        answer = page.show("log_in.html", 422, next=page.form.get("next", ""), problem=problem)
        _keep_form(page, answer)
        return answer
    page.session = session
    answer = page.go(_safe(page.form.get("next", "")))
    keep(page, answer)
    return answer


async def leave(page: Page) -> Response:
    """Forget the session; other windows of the browser are logged out, too."""
    answer = RedirectResponse(page.location("/log-in"), 303)
    answer.delete_cookie(cookie_name(page.options.group), path=_path(page))
    answer.headers["Clear-Site-Data"] = '"cache"'
    return answer


def keep(page: Page, answer: Response) -> None:
    """Write the session's cookie."""
    name = cookie_name(page.options.group)
    answer.set_cookie(
        name, page.session.cookie, path=_path(page), secure=_is_secure(page.request), httponly=True, samesite="strict"
    )


def is_own(given: str, page: Page) -> bool:
    """Whether a form's token is this session's; before a log-in, that of the form's own cookie."""
    known = Session.of_cookie(page.request.cookies.get(FORM_COOKIE, ""))
    sessions = (page.session, *((known,) if known is not None and not page.session.token else ()))
    return any(hmac.compare_digest(given.encode(), one.csrf.encode()) for one in sessions)


def refuse_foreign(page: Page) -> None:
    """A form that another site has sent. Raises `Refused`."""
    request = page.request
    host = request.headers.get("host", "").lower()
    origin = request.headers.get("origin", "").lower()
    is_foreign = origin not in ("", f"http://{host}", f"https://{host}")
    if is_foreign or request.headers.get("sec-fetch-site", "none").lower() not in OWN_SITE:
        raise Refused("The console takes no form of another site.")


def is_from_elsewhere(request: Request) -> bool:
    """A link of another site has led here, so the browser has kept the session's cookie back."""
    return request.method == "GET" and request.headers.get("sec-fetch-site", "none").lower() not in OWN_SITE


def again(page: Page) -> Response:
    """Ask for the same page once more, from here: then the cookie comes."""
    there = page.here()
    return HTMLResponse(page.show("again.html", there=there).body, headers={"Refresh": f"0; url={there}"})


def _keep_form(page: Page, answer: Response) -> None:
    answer.set_cookie(
        FORM_COOKIE, page.session.cookie, path=_path(page), secure=_is_secure(page.request), httponly=True,
        samesite="strict",
    )  # fmt: skip


def _is_secure(request: Request) -> bool:
    """Whether the browser speaks HTTPS, be it with a proxy in front: it says so with each form."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _path(page: Page) -> str:
    return f"{page.options.path}{ROOT}"


def _next(page: Page) -> str:
    return _safe(page.query("next"))


def _safe(path: str) -> str:
    """A page of the console to go to, and nowhere else."""
    is_path = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_path else ""
