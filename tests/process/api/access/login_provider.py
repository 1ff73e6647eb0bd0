"""A provider at which people log in with a browser: its page, and codes that it redeems once, for their verifier alone.

It is of another site than the console, `localhost` beside 127.0.0.1, as real ones are: what a browser keeps back from
other sites it keeps back here.
"""

import base64
import hashlib
import html
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from api.access.jwks import DISCOVERY
from tests.unit.api.access.oidc_world import AUDIENCE, RSA_KEY, JwksServer, claims, jwk, jwks_server, signed

CLIENT_ID: Final = "tickover-console"
PERSON: Final = "maria"
ASKED: Final = (
    "response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge", "code_challenge_method",
)  # fmt: skip
OPAQUE: Final = "an-access-token-that-only-the-provider-can-read"


class LoginProvider:
    """`refusals`: why it has redeemed nothing. `fault`: what it does wrong on purpose, one of those that `_going` and
    `_token` know. `is_opaque`: its access tokens are no JWTs.
    """

    def __init__(self, keys: JwksServer) -> None:
        self.url = f"http://localhost:{keys.server.port}"
        self.roles: list[str] = ["tickover:read"]
        self.fault = ""
        self.is_opaque = False
        self.refusals: list[str] = []
        self.redeemed = 0
        self._codes: dict[str, Mapping[str, str]] = {}  # what was asked for, by code
        keys.answer = self._answer

    async def _answer(self, request: Request) -> Response:
        match request.method, request.url.path:
            case "GET", path if path == DISCOVERY:
                ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
                told = {name: f"{self.url}/{end}" for name, end in ends.items()}
                return JSONResponse({"issuer": self.url, **told})
            case "GET", "/jwks":
                return JSONResponse({"keys": [jwk(RSA_KEY, "k1")]})
            case "GET", "/authorize":
                return self._page(request.query_params)
            case "POST", "/authorize":
                return self._going(dict(parse_qsl((await request.body()).decode())))
            case "POST", "/token":
                return self._token(dict(parse_qsl((await request.body()).decode())))
            case _:
                return Response(None, 404)

    def _page(self, asked: Mapping[str, str]) -> Response:
        """The page on which somebody says who they are."""
        fields = "".join(f'<input type="hidden" name="{name}" value="{html.escape(asked[name])}">' for name in ASKED)
        buttons = "".join(f'<button name="says" value="{says}">{says}</button>' for says in ("Continue", "Refuse"))
        form = f"<form method=post>{fields}{buttons}</form>"
        return HTMLResponse(f"<!doctype html><title>Provider</title><h1>Are you {PERSON}?</h1>{form}")

    def _going(self, form: Mapping[str, str]) -> Response:
        """Send the browser back."""
        assert (form["response_type"], form["client_id"]) == ("code", CLIENT_ID)
        assert form["code_challenge_method"] == "S256"
        assert "openid" in form["scope"].split()
        back: dict[str, str] = {"state": "of-another-log-in" if self.fault == "state" else form["state"]}
        if form["says"] == "Continue":
            code = back["code"] = secrets.token_urlsafe(16)
            others = {"code_challenge": hashed("another's verifier")} if self.fault == "code" else {}
            self._codes[code] = {**form, **others}
        else:
            back |= {"error": "access_denied", "error_description": f"{PERSON} <b>said</b> no"}
        return RedirectResponse(f"{form['redirect_uri']}?{urlencode(back)}", 303)

    def _token(self, form: Mapping[str, str]) -> Response:
        """Tokens for a code, once."""
        asked = self._codes.pop(form.get("code", ""), None)
        if form.get("grant_type") != "authorization_code" or asked is None:
            return self._refusal("no such code")
        if (form.get("client_id"), form.get("redirect_uri")) != (asked["client_id"], asked["redirect_uri"]):
            return self._refusal("another client, or another way back")
        if hashed(form.get("code_verifier", "")) != asked["code_challenge"]:
            return self._refusal("another verifier")
        self.redeemed += 1
        issuer = "https://elsewhere.example" if self.fault == "issuer" else self.url
        body = claims(iss=issuer, sub=PERSON, roles=self.roles)
        nonce = "of-another-log-in" if self.fault == "nonce" else asked["nonce"]
        tokens: dict[str, Any] = {
            "access_token": OPAQUE if self.is_opaque else signed(body),
            "id_token": signed({**body, "aud": [AUDIENCE, CLIENT_ID], "nonce": nonce}),
        }
        return JSONResponse({"token_type": "Bearer", "expires_in": 600, **tokens})

    def _refusal(self, why: str) -> Response:
        self.refusals.append(why)
        return JSONResponse({"error": "invalid_grant"}, 400)


def hashed(text: str) -> str:
    """A verifier as its challenge."""
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@contextmanager
def login_provider() -> Iterator[LoginProvider]:
    with jwks_server() as keys:
        yield LoginProvider(keys)
