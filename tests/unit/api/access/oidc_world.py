"""A provider of tokens in this process: its keys, tokens of every kind, and a server for its keys."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from api.access.jwks import Keys, usable_keys
from api.access.oidc import Oidc
from api.serving.server import Server
from sidecar.settings.api import OidcSettings

ISSUER = "https://login.example/realm"
AUDIENCE = "tickover"
SETTINGS = OidcSettings(issuer=ISSUER, audience=(AUDIENCE,))
ROLE_NAMES = {"READ": "tickover:read", "WRITE": "tickover:write", "ADMIN": "tickover:admin"}
Signer = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

RSA_KEY = rsa.generate_private_key(65_537, 2_048)
OTHER_RSA_KEY = rsa.generate_private_key(65_537, 2_048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Signer, kid: str, **members: Any) -> dict[str, Any]:
    """The public half as the provider shows it."""
    if isinstance(key, rsa.RSAPrivateKey):
        shown = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        shown = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    shown.pop("key_ops", None)
    return {**shown, "kid": kid, "use": "sig", **members}


def claims(**changes: Any) -> dict[str, Any]:
    """Good claims, with changes; None takes one away."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "maria", "iat": now, "exp": now + 600}
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def signed(
    body: dict[str, Any] | None = None,
    key: Signer = RSA_KEY,
    kid: str | None = "k1",
    algorithm: str = "RS256",
    **header: Any,
) -> str:
    """A token with any claims, also those that PyJWT would not write."""
    payload = json.dumps(claims() if body is None else body).encode()
    return jwt.PyJWS().encode(
        payload, key, algorithm, {**({} if kid is None else {"kid": kid}), "typ": "JWT", **header}
    )


def token_of(role: str, **changes: Any) -> str:
    """A good token with one role."""
    return signed(claims(roles=[ROLE_NAMES[role]], **changes))


def by_hand(header: dict[str, Any], body: dict[str, Any], secret: bytes | None) -> str:
    """A token that no library would make: HS256 with any bytes as its secret, or no signature."""
    signing = b".".join(_part(json.dumps(part).encode()) for part in (header, body))
    signature = b"" if secret is None else hmac.new(secret, signing, hashlib.sha256).digest()
    return (signing + b"." + _part(signature)).decode()


def public_pem(key: Signer) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def oidc_of(*entries: dict[str, Any], settings: OidcSettings = SETTINGS) -> Oidc:
    """A verifier that knows these keys (default: RSA_KEY as k1, EC_KEY as k2)."""
    shown = {"keys": list(entries) or [jwk(RSA_KEY, "k1"), jwk(EC_KEY, "k2")]}

    async def fetch() -> Any:
        return usable_keys(shown, settings.algorithms)

    return Oidc(settings, Keys(fetch, 600.0, 3_600.0, lambda: 0.0))


class JwksServer:
    """A provider's two addresses, with what they answer and how often they were asked."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.status = 200
        self.body: bytes | None = None
        self.issuer = ""
        self.jwks_uri: Any = None
        self.asked: list[str] = []
        self.answer = self._answer
        app = Starlette(routes=[Route("/{path:path}", self._answered, methods=["GET", "POST"])])
        self.server = Server(app, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def _answered(self, request: Request) -> Response:
        return await self.answer(request)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append(path)
        document: dict[str, Any] = {"keys": self.keys}
        if path.startswith("/.well-known"):
            document = {"issuer": self.issuer or self.url, "jwks_uri": self.jwks_uri or f"{self.url}/jwks"}
        body = json.dumps(document).encode() if self.body is None else self.body
        return Response(body, self.status, {"Location": "/elsewhere"}, "application/json")


@contextmanager
def jwks_server() -> Iterator[JwksServer]:
    made = JwksServer()
    made.keys = [jwk(RSA_KEY, "k1")]
    made.server.start()
    try:
        yield made
    finally:
        made.server.stop()
