"""Signing people on at an OpenID Connect provider: the code flow with PKCE (RFC 7636), for the console.

A browser is sent to the provider with a challenge, comes back with a code, and the code is redeemed for tokens with the
verifier that only this browser's cookie has. No client secret: whoever has a code without the verifier has nothing.
Challenge and nonce are hashes of the verifier. The ID token must have the nonce: so a code that somebody else has put
into this browser gives nothing either, where a provider passes over challenges.

Anybody may begin a log-in, so the provider is protected from it: what it says of itself is asked for once in a while,
by one at a time, and `REDEEMED_MAX` codes at once are redeemed.
"""

import asyncio
import base64
import hashlib
import math
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import jwt

from api.access.jwks import FETCH_S, DocumentError, document_of, is_safe, provider_document
from sidecar.settings.api import OidcSettings, is_loopback

KNOWN_S: Final = 60.0  # so long counts what the provider says of itself
PAUSE_S: Final = 2.0  # after it couldn't be asked
REDEEMED_MAX: Final = 8


class SignOnFailed(OSError):
    """The provider let nobody in; the text says why, without a code or a token."""


class SignOn:
    """The provider's pages for people. For one event loop."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._trust = ssl.create_default_context(cafile=settings.ca_file or None)
        self._asking = asyncio.Lock()
        self._document: Mapping[str, Any] = {}
        self._failure = ""  # why there is no document; empty: there is one, or nobody has asked yet
        self._ask_again_s = -math.inf
        self._redeemed = 0  # codes, at this moment

    async def address(self, state: str, verifier: str, redirect_uri: str) -> str:
        """Where to send the browser. Raises SignOnFailed."""
        settings = self._settings
        asked = {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(settings.scopes),
            "state": state,
            "nonce": _nonce(verifier),
            "code_challenge": _hashed(verifier),
            "code_challenge_method": "S256",
        }
        address = await self._endpoint("authorization_endpoint")
        return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> list[str]:
        """Tokens for a code: the access token first, then the ID token. Raises SignOnFailed."""
        if self._redeemed >= REDEEMED_MAX:
            raise SignOnFailed("too many log-ins are under way; try again in a moment")
        self._redeemed += 1
        try:
            return await self._tokens(code, verifier, redirect_uri)
        finally:
            self._redeemed -= 1

    async def _tokens(self, code: str, verifier: str, redirect_uri: str) -> list[str]:
        asked = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._settings.client_id,
            "code_verifier": verifier,
        }
        address = await self._endpoint("token_endpoint")
        answer = await self._ask(address, lambda client: document_of(client, address, asked))
        tokens = [answer.get("access_token"), answer.get("id_token")]
        if tokens[-1] is not None and _nonce_in(tokens[-1]) != _nonce(verifier):
            raise SignOnFailed("its ID token is of another log-in")
        if self._settings.access_tokens_only:
            tokens.pop()
        return [token for token in tokens if isinstance(token, str) and token]

    async def _endpoint(self, name: str) -> str:
        document = await self._discovered()
        address = document.get(name)
        if not isinstance(address, str) or not is_safe(address):
            raise SignOnFailed(f"the provider names no https address as its {name.replace('_', ' ')}")
        return address

    async def _discovered(self) -> Mapping[str, Any]:
        async with self._asking:
            if time.monotonic() >= self._ask_again_s:
                try:
                    issuer = self._settings.issuer
                    self._document = await self._ask(issuer, lambda client: provider_document(client, issuer))
                    self._failure = ""
                except SignOnFailed as error:
                    self._failure = str(error)
                self._ask_again_s = time.monotonic() + (PAUSE_S if self._failure else KNOWN_S)
        if self._failure:
            raise SignOnFailed(self._failure)
        return self._document

    async def _ask(
        self, address: str, question: Callable[[httpx.AsyncClient], Awaitable[Mapping[str, Any]]]
    ) -> Mapping[str, Any]:
        local = is_loopback(httpx.URL(address).host)
        try:
            async with (
                asyncio.timeout(FETCH_S),
                httpx.AsyncClient(verify=self._trust, timeout=FETCH_S, trust_env=not local) as client,
            ):
                return await question(client)
        except DocumentError as error:
            raise SignOnFailed(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # a timeout is an OSError
            raise SignOnFailed(f"the provider can't be asked ({type(error).__name__})") from None


def _hashed(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def _nonce(verifier: str) -> str:
    return _hashed(f"nonce {verifier}")


def _nonce_in(id_token: object) -> object:
    """The nonce of an ID token; None: it has none. Who has signed it is asked where it is to count for a caller."""
    try:
        claims = jwt.decode(id_token, options={"verify_signature": False})  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return claims.get("nonce")
