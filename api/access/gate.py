"""Admission to the API: who a caller is, whether the role is enough, and whether the caller comes too often.

    tokens or a provider in the settings    a bearer token, else 401
    none of them, on loopback               whoever is on this machine, but no page in a browser, else 403
    api.allow_unauthenticated               anybody, but no page of another site, else 403

No mode answers another site's pages. Without tokens a browser would lend each of them what its user may do, so what
changes something or shows a payload needs more than being there: see `_is_meant`.

A caller is limited by name, or without one by address; so are refused tokens, which cost us as much as good ones.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from fastapi import Request

from api.access.auth import (
    ANONYMOUS,
    AccessConfigError,
    Caller,
    KeysUnavailable,
    Role,
    TokenRefused,
    Tokens,
    load_tokens,
)
from api.access.rate import RateLimit
from api.problems import Problem
from api.serving.connection_limit import network_of
from sidecar.settings.api import ApiSettings, OidcSettings, is_loopback

REFUSED_PER_S: Final = 10  # of one address: refused tokens, then 429
REFUSED_BURST: Final = 100

CLIENT_HEADER: Final = "Tickover-Client"
SIMPLE_METHODS: Final = ("GET", "HEAD", "POST")  # what a page may send to another site without asking it first
OWN_SITE: Final = ("same-origin", "none")
OPENED_BY_LINKS: Final = ("/", "/docs")  # they hold nothing of anybody, and no page may show them in a frame

log = logging.getLogger("tickover.api")


def _unlimited() -> RateLimit:
    return RateLimit(0, 1)


class SignedTokens(Protocol):
    """The tokens of a provider (`api.access.oidc.Oidc`)."""

    async def caller(self, token: str) -> Caller:
        """Find the owner of a token. Raises TokenRefused, KeysUnavailable."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Whom the settings let in, and how often."""

    tokens: Tokens | None = None
    oidc: SignedTokens | None = None
    anybody: bool = False
    metrics_open: bool = False
    rate: RateLimit = field(default_factory=_unlimited)
    refused_rate: RateLimit = field(default_factory=lambda: RateLimit(REFUSED_PER_S, REFUSED_BURST))

    async def identify(self, request: Request, now_s: float) -> Caller:
        """The caller of `request`, or `Problem`: 401, 403, 429 (too many refused tokens), 503."""
        try:
            return await self._caller(request)
        except Problem as problem:
            if problem.status == 401:
                self._limit(self.refused_rate, _address(request), now_s)
            raise

    async def may_read(self, request: Request, now_s: float) -> bool:
        """Whether the caller has the role read; for what everybody may ask and only some are told all of."""
        if getattr(request.state, "nobody_is_known", False):  # on the probes' own listener
            return False
        if (self.tokens or self.oidc) and "authorization" not in request.headers:
            return False
        try:
            caller = await self.identify(request, now_s)
        except Problem:
            return False
        if caller.name == ANONYMOUS and not self.anybody and not _is_of_this_machine(request):
            return False
        return caller.role is not None and caller.role >= Role.READ

    def limit(self, caller: Caller, request: Request, now_s: float) -> None:
        """Counts a request of this caller. Raises `Problem` (429)."""
        who = _address(request) if caller.name == ANONYMOUS else f"name {caller.name}"
        self._limit(self.rate, who, now_s)

    def visitor(self, request: Request, now_s: float) -> None:
        """Limits who calls what is open to everybody. Raises `Problem`: 403 for a foreign page or host, 429."""
        self._refuse_browsers(request)
        self._limit(self.rate, _address(request), now_s)

    def _refuse_browsers(self, request: Request) -> None:
        """403 for what a page of another site has sent."""
        if self.tokens is None and self.oidc is None and not self.anybody:
            _refuse_other_hosts(request)
        _refuse_foreign_pages(request)

    async def _caller(self, request: Request) -> Caller:
        self._refuse_browsers(request)
        if self.tokens is None and self.oidc is None:
            return Caller(ANONYMOUS, Role.ADMIN if _is_meant(request) else Role.READ)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise _unauthorized("")
        caller = self.tokens.caller(token) if self.tokens else None
        if caller is not None:
            return caller
        if self.oidc is None:
            raise _unauthorized("it is unknown")
        try:
            return await self.oidc.caller(token)
        except TokenRefused as error:
            raise _unauthorized(str(error)) from None
        except KeysUnavailable as error:
            detail = "Tokens can't be verified at the moment: their provider doesn't answer."
            raise Problem(503, "keys-unavailable", detail, _retry_after(error.retry_s)) from None

    def _limit(self, rate: RateLimit, who: str, now_s: float) -> None:
        wait_s = rate.wait_s(who, now_s)
        if wait_s:
            detail = f"Too many requests. Try again in {math.ceil(wait_s)} s."
            raise Problem(429, "rate-limited", detail, _retry_after(wait_s))


def open_gate(settings: ApiSettings, now_s: Callable[[], float]) -> Gate:
    """The gate that the settings ask for; `now_s` is a monotonic clock. Raises `AccessConfigError`."""
    oidc = _provider(settings.oidc, now_s) if settings.oidc.issuer else None
    if settings.allow_unauthenticated:
        log.warning("api.allow_unauthenticated is set: whoever reaches the API may do everything")
    return Gate(
        tokens=load_tokens(Path(settings.tokens_file)) if settings.tokens_file else None,
        oidc=oidc,
        anybody=settings.allow_unauthenticated,
        metrics_open=settings.metrics_open,
        rate=RateLimit(settings.rate_limit, settings.rate_burst),
    )


def _provider(settings: OidcSettings, now_s: Callable[[], float]) -> SignedTokens:
    # An HTTP client, JWT and cryptography: 8 MB that most processes don't need.
    from api.access.jwks import Keys, Provider
    from api.access.oidc import Oidc

    try:
        provider = Provider(settings)
    except OSError as error:  # also what ssl says of a file that holds no certificate
        reason = error.strerror or type(error).__name__
        raise AccessConfigError(f"api.oidc.ca_file {settings.ca_file}: {reason}") from None
    ages_s = settings.keys_max_age_ms / 1_000, settings.keys_stale_max_ms / 1_000
    return Oidc(settings, Keys(provider.fetch, *ages_s, now_s))


def require(caller: Caller, needed: Role) -> None:
    """403 without the role."""
    if caller.name == ANONYMOUS and caller.role is Role.READ and needed > Role.READ:
        detail = f"Without tokens this needs a header that no page in a browser sends: {CLIENT_HEADER}, with any value."
        raise Problem(403, "client-header-needed", detail)
    if caller.role is None or caller.role < needed:
        raise Problem(403, "forbidden", f"This needs the role {needed.name.lower()}.")


def _unauthorized(reason: str) -> Problem:
    """401; without a reason no token was given (RFC 6750 section 3.1)."""
    challenge = 'Bearer realm="tickover"' + (f', error="invalid_token", error_description="{reason}"' if reason else "")
    detail = "Send a valid token: Authorization: Bearer <token>." + (
        f" This one is refused: {reason}." if reason else ""
    )
    return Problem(401, "unauthorized", detail, {"WWW-Authenticate": challenge})


def _retry_after(wait_s: float) -> dict[str, str]:
    return {"Retry-After": str(max(math.ceil(wait_s), 1))}


def _refuse_other_hosts(request: Request) -> None:
    """Without tokens the only fence is the loopback address, and browsers are behind it: a page whose host name is
    pointed at 127.0.0.1 could call us. Its requests carry that name in Host.
    """
    if not is_loopback(host_name(request)):
        raise Problem(403, "host-not-allowed", "Without tokens the API answers only as localhost.")


def host_name(request: Request) -> str:
    """Name or address that was asked for, without its port."""
    host = request.headers.get("host", "")
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _refuse_foreign_pages(request: Request) -> None:
    """Any page may send requests without a body of its own type, `fire` say, to whatever its browser reaches. Browsers
    say so: in Sec-Fetch-Site, and, older ones or by plain HTTP, in Origin for all but GET.
    """
    is_link = request.method in ("GET", "HEAD") and request.url.path in OPENED_BY_LINKS
    if (not is_link and is_led_here(request)) or has_foreign_origin(request):
        raise Problem(403, "origin-not-allowed", "The API answers no other site's pages.")


def is_led_here(request: Request) -> bool:
    """Whether the browser says that another site has led to this request, by a link or otherwise."""
    return request.headers.get("sec-fetch-site", "none").lower() not in OWN_SITE


def has_foreign_origin(request: Request) -> bool:
    """Whether a page of another origin has sent this. Something in front may speak TLS, so either scheme is ours."""
    origin = request.headers.get("origin")
    own = [f"{scheme}://{request.headers.get('host', '')}".lower() for scheme in ("http", "https")]
    return origin is not None and origin.lower() not in own


def _is_meant(request: Request) -> bool:
    """Whether no page of another site can have sent this, whatever its browser says or leaves out.

    Such a page's browser asks first (CORS) before it sends a header or a type of body that no form has, or another
    method than a form's, and we never agree.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Not `Authorization`: a browser adds what it remembers for Basic by itself.
    return request.method not in SIMPLE_METHODS or media_type == "application/json" or CLIENT_HEADER in request.headers


def _address(request: Request) -> str:
    return network_of(request.client.host if request.client else "")


def _is_of_this_machine(request: Request) -> bool:
    return request.client is not None and is_loopback(request.client.host)
