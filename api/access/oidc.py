"""Signed tokens (JWT) of an OpenID Connect provider: who a token names, and with which role.

A token counts if all of this holds, and is refused with the first that doesn't:

    algorithm in api.oidc.algorithms, none of them with a shared secret     else no key is even looked for
    no critical extensions, type JWT or at+jwt                              at+jwt alone: api.oidc.access_tokens_only
    key id among the provider's keys, key of the algorithm's type           keys in the token's header mean nothing
    signature
    exp, nbf, iat (api.oidc.leeway), iss, aud                               exp, iss and aud must be there
    from iat to exp no longer than api.oidc.lifetime_max                    iat must be there, if that is set
    name_claim a text

The role is the highest that a value of `roles_claim` gives; a caller without one is known, and may do nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

import jwt

from api.access.auth import OIDC_PREFIX, Caller, Role, TokenRefused
from api.access.jwks import Keys
from sidecar.settings.api import OidcSettings

TOKEN_CHARACTERS_MAX: Final = 16_384
KID_CHARACTERS_MAX: Final = 500
NAME_CHARACTERS_MAX: Final = 200
ACCESS_TYPES: Final = ("at+jwt", "application/at+jwt")  # RFC 9068
TYPES: Final = ("jwt", *ACCESS_TYPES)
# What is said of a refusal. PyJWT's own words are not shown: they may hold pieces of the token.
_WORDS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidIssuerError, "it is of another issuer"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.MissingRequiredClaimError, "a claim is missing"),
    (jwt.InvalidSignatureError, "its signature is wrong"),
)
# All that reading a token may raise: its parts may be any bytes, its claims any JSON.
_UNREADABLE: Final = (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)


class Oidc:
    """The tokens of one provider."""

    def __init__(self, settings: OidcSettings, keys: Keys) -> None:
        self._settings = settings
        self._keys = keys
        self._roles = {
            **dict.fromkeys(settings.read_roles, Role.READ),
            **dict.fromkeys(settings.write_roles, Role.WRITE),
            **dict.fromkeys(settings.admin_roles, Role.ADMIN),
        }

    async def caller(self, token: str) -> Caller:
        """Find the owner of a token. Raises TokenRefused, KeysUnavailable."""
        algorithm, kid = self._header(token)
        key = await self._keys.find(kid, algorithm)
        if key is None:
            raise TokenRefused("its key is unknown")
        claims = self._claims(token, algorithm, key)
        name = claims.get(self._settings.name_claim)
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise TokenRefused("it names nobody")
        return Caller(OIDC_PREFIX + name, self._role(claims))

    def _header(self, token: str) -> tuple[str, str]:
        """Algorithm and key id, before anything else is believed."""
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise TokenRefused("it is too long")
        try:
            header = jwt.get_unverified_header(token)
        except _UNREADABLE:
            raise TokenRefused("it is not one of ours and no JWT") from None
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
        if algorithm not in self._settings.algorithms:
            raise TokenRefused("its algorithm is not allowed")
        types = ACCESS_TYPES if self._settings.access_tokens_only else TYPES
        if not isinstance(kind, str) or kind.lower() not in types or "crit" in header:
            raise TokenRefused("it is of another kind")
        if not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARACTERS_MAX:
            raise TokenRefused("it names no key")
        return str(algorithm), kid

    def _claims(self, token: str, algorithm: str, key: jwt.PyJWK) -> dict[str, Any]:
        settings = self._settings
        required = ["exp", "iss", "aud", *(["iat"] if settings.lifetime_max_ms else [])]
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=settings.issuer,
                audience=list(settings.audience),
                leeway=settings.leeway_ms / 1_000,
                options={"require": required, "enforce_minimum_key_length": True},
            )
            lives_ms = (int(claims["exp"]) - int(claims.get("iat", 0))) * 1_000
        except _UNREADABLE as error:
            words = next((words for kind, words in _WORDS if isinstance(error, kind)), "it can't be verified")
            raise TokenRefused(words) from None
        if 0 < settings.lifetime_max_ms < lives_ms:
            raise TokenRefused("it is good for too long")
        return claims

    def _role(self, claims: Mapping[str, Any]) -> Role | None:
        given = _claim(claims, self._settings.roles_claim)
        names = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        return max((self._roles[name] for name in names if isinstance(name, str) and name in self._roles), default=None)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of this name, which may have dots; else what the dots lead to."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found
