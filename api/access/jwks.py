"""A provider's public keys: fetched when needed, kept, and fetched again when they have changed.

    known key, younger than `max_age`      used as it is
    older, or an unknown key               asked for first, by one request for all who wait
    asked less than PAUSE_S ago            not asked again: unknown keys in tokens can't make us a nuisance
    the provider doesn't answer            asked again after RETRY_S, doubled up to RETRY_MAX_S; old keys go on until
                                           `stale_max`

So a new key is known at most PAUSE_S after its first token came, and one that was withdrawn is gone after `max_age`.
"""

import asyncio
import json
import logging
import math
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import httpx
from jwt import PyJWK, PyJWTError

from api.access.auth import KeysUnavailable
from sidecar.settings.api import OidcSettings, is_loopback

PAUSE_S: Final = 10.0
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
FETCH_S: Final = 5.0
DOCUMENT_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
DISCOVERY: Final = "/.well-known/openid-configuration"
# Which key an algorithm needs: its type, and its curve where it has one.
_FITTING: Final = {
    "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384"), "ES512": ("EC", "P-521"), "EdDSA": ("OKP", "Ed25519"),
}  # fmt: skip
_RSA: Final = ("RSA", None)

KeySet = Mapping[tuple[str, str], PyJWK]  # by key id and algorithm

log = logging.getLogger("tickover.api")


class DocumentError(ValueError):
    """The provider's answer is not what it should be."""


class Keys:
    """The provider's keys. Used by the API's event loop alone."""

    def __init__(
        self, fetch: Callable[[], Awaitable[KeySet]], max_age_s: float, stale_max_s: float, now_s: Callable[[], float]
    ) -> None:
        self._fetch = fetch
        self._max_age_s = max_age_s
        self._stale_max_s = stale_max_s
        self._now_s = now_s
        self._keys: KeySet = {}
        self._fetched_s = -math.inf
        self._ask_again_s = -math.inf
        self._failures = 0
        self._asking: asyncio.Task[None] | None = None

    async def find(self, kid: str, algorithm: str) -> PyJWK | None:
        """The key of this id for this algorithm; None: the provider has none. Raises KeysUnavailable."""
        key = self._keys.get((kid, algorithm))
        if key is not None and self._age_s <= self._max_age_s:
            return key
        await self._ask()
        key = self._keys.get((kid, algorithm))
        # Without an answer nobody knows whether the provider has a new key by now.
        if self._age_s > self._stale_max_s or (key is None and self._failures):
            raise KeysUnavailable(max(self._ask_again_s - self._now_s(), 1.0))
        return key

    @property
    def _age_s(self) -> float:
        return self._now_s() - self._fetched_s

    async def _ask(self) -> None:
        """One request at a time, whoever waits for it; who goes away doesn't end it for the others."""
        if self._asking is None:
            if self._now_s() < self._ask_again_s:
                return
            self._asking = asyncio.create_task(self._take())
        await asyncio.shield(self._asking)

    async def _take(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                self._keys = await self._fetch()
            self._fetched_s, self._failures = self._now_s(), 0
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:  # a timeout is an OSError
            self._failures += 1
            reason = str(error) if isinstance(error, DocumentError) else type(error).__name__
            log.warning("the keys for tokens can't be fetched", extra={"reason": reason, "failures": self._failures})
        finally:
            back_off_s = min(RETRY_S * 2 ** min(self._failures - 1, 10), RETRY_MAX_S)
            self._ask_again_s = self._now_s() + (back_off_s if self._failures else PAUSE_S)
            self._asking = None


class Provider:
    """Where the keys come from: the address in the settings, or what the provider says of itself."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._trust = ssl.create_default_context(cafile=settings.ca_file or None)

    async def fetch(self) -> KeySet:
        """The keys now. Raises httpx.HTTPError, OSError, ValueError."""
        settings = self._settings
        local = is_loopback(httpx.URL(settings.jwks_url or settings.issuer).host)
        async with httpx.AsyncClient(verify=self._trust, timeout=FETCH_S, trust_env=not local) as client:
            address = settings.jwks_url or await self._discovered(client)
            document = await document_of(client, address)
        return usable_keys(document, settings.algorithms)

    async def _discovered(self, client: httpx.AsyncClient) -> str:
        address = (await provider_document(client, self._settings.issuer)).get("jwks_uri")
        if not isinstance(address, str) or not is_safe(address):
            raise DocumentError("the provider names no https address of its keys")
        return address


async def provider_document(client: httpx.AsyncClient, issuer: str) -> dict[str, Any]:
    """The provider's own words about itself. Raises as `document_of`."""
    document = await document_of(client, issuer.rstrip("/") + DISCOVERY)
    if document.get("issuer") != issuer:
        raise DocumentError("the provider names another issuer than api.oidc.issuer")
    return document


def usable_keys(document: Mapping[str, Any], algorithms: tuple[str, ...]) -> KeySet:
    """The keys of a JWK Set that may sign tokens by one of the algorithms; others are passed over."""
    entries = document.get("keys")
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise DocumentError(f"the provider's answer is no list of at most {KEYS_MAX} keys")
    keys: dict[tuple[str, str], PyJWK] = {}
    for entry in entries:
        kid = entry.get("kid") if isinstance(entry, dict) else None
        if not isinstance(kid, str) or entry.get("use", "sig") != "sig":
            continue
        for algorithm in algorithms:
            if entry.get("alg", algorithm) != algorithm or not _fits(entry, algorithm):
                continue
            try:
                keys[kid, algorithm] = PyJWK(entry, algorithm)
            except (PyJWTError, ValueError, TypeError):
                log.warning("a key of the provider is not valid and is passed over")
    return keys


def _fits(entry: Mapping[str, Any], algorithm: str) -> bool:
    kind, curve = _FITTING.get(algorithm, _RSA)
    return entry.get("kty") == kind and (curve is None or entry.get("crv") == curve)


async def document_of(client: httpx.AsyncClient, address: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A JSON object of bounded size, asked for with a form where there is one. No redirects: they could lead away from
    https. Raises DocumentError, httpx.HTTPError.
    """
    async with client.stream("GET" if form is None else "POST", address, data=form) as response:
        if response.status_code != httpx.codes.OK:
            raise DocumentError(f"the provider answers {response.status_code}")
        data = b""
        async for piece in response.aiter_bytes():
            data += piece
            if len(data) > DOCUMENT_BYTES_MAX:
                raise DocumentError(f"the provider's answer is larger than {DOCUMENT_BYTES_MAX} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise DocumentError("the provider's answer is not JSON") from None
    if not isinstance(document, dict):
        raise DocumentError("the provider's answer is no JSON object")
    return document


def is_safe(address: str) -> bool:
    """Whether an address is of https, or of this machine."""
    url = httpx.URL(address)
    return url.scheme == "https" or (url.scheme == "http" and is_loopback(url.host))
