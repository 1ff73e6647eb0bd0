"""Signing people on at an OpenID Connect provider: the code flow with PKCE (RFC 7636), for the console.

A browser is sent to the provider with a challenge, comes back with a code, and the code is redeemed for tokens with the
verifier that only this browser's cookie has. No client secret: whoever has a code without the verifier has nothing.
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import httpx

from api.access.jwks import DISCOVERY, FETCH_S, DocumentError, document_of, is_safe
from sidecar.settings.api import OidcSettings, is_loopback


class SignOnFailed(OSError):
    """The provider let nobody in; the text says why, without a code or a token."""


class SignOn:
    """The provider's pages for people."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._trust = ssl.create_default_context(cafile=settings.ca_file or None)

    async def address(self, state: str, challenge: str, redirect_uri: str) -> str:
        """Where to send the browser. Raises SignOnFailed."""
        settings = self._settings
        asked = {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(settings.scopes),
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = await self._endpoint("authorization_endpoint")
        return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> list[str]:
        """Tokens for a code: the access token first, then the ID token. Raises SignOnFailed."""
        asked = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._settings.client_id,
            "code_verifier": verifier,
        }
        answer = await self._ask(await self._endpoint("token_endpoint"), asked)
        tokens = [answer.get("access_token"), answer.get("id_token")]
        if self._settings.access_tokens_only:
            tokens.pop()
        return [token for token in tokens if isinstance(token, str) and token]

    async def _endpoint(self, name: str) -> str:
        document = await self._ask(self._settings.issuer.rstrip("/") + DISCOVERY)
        address = document.get(name)
        if document.get("issuer") != self._settings.issuer:
            raise SignOnFailed("the provider names another issuer than api.oidc.issuer")
        if not isinstance(address, str) or not is_safe(address):
            raise SignOnFailed(f"the provider names no https address as its {name.replace('_', ' ')}")
        return address

    async def _ask(self, address: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        local = is_loopback(httpx.URL(address).host)
        try:
            async with (
                asyncio.timeout(FETCH_S),
                httpx.AsyncClient(verify=self._trust, timeout=FETCH_S, trust_env=not local) as client,
            ):
                return await document_of(client, address, form)
        except DocumentError as error:
            raise SignOnFailed(str(error)) from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # a timeout is an OSError
            raise SignOnFailed(f"the provider can't be asked ({type(error).__name__})") from None
