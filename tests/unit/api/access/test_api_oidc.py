"""Signed tokens of a provider: every route with every bad token, and what makes one good."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from api.access.auth import Role, TokenRefused, load_tokens
from api.access.gate import Gate
from api.access.oidc import TOKEN_CHARACTERS_MAX, Oidc
from sidecar.settings.api import OidcSettings
from tests.examples import examples
from tests.unit.api.access.oidc_world import (
    AUDIENCE,
    EC_KEY,
    ISSUER,
    OTHER_RSA_KEY,
    RSA_KEY,
    SETTINGS,
    by_hand,
    claims,
    jwk,
    oidc_of,
    public_pem,
    signed,
    token_of,
)
from tests.unit.api.access.test_api_auth import ROUTES, bearer, tokens_file
from tests.unit.api_world import problem, world

pytestmark = pytest.mark.slow

ADMIN = {"roles": ["tickover:admin"]}
HS256 = {"alg": "HS256", "kid": "k1", "typ": "JWT"}


def now() -> int:
    return int(time.time())


def broken(token: str) -> str:
    """The token with another signature."""
    signed_part, _, signature = token.rpartition(".")
    return f"{signed_part}.{signature[::-1]}"


def with_claims_of(token: str, other: str) -> str:
    """One token's signature over the other's claims."""
    (head, _, signature), (_, body, _) = token.split("."), other.split(".")
    return f"{head}.{body}.{signature}"


BAD = {
    "none": lambda: "",
    "no jwt": lambda: "no-jwt",  # no hexadecimal word: answers carry request ids
    "bad signature": lambda: broken(token_of("ADMIN")),
    "changed claims": lambda: with_claims_of(token_of("READ"), token_of("ADMIN")),
    "signed by another key": lambda: signed(claims(**ADMIN), OTHER_RSA_KEY),
    "alg none": lambda: by_hand({"alg": "none", "kid": "k1"}, claims(**ADMIN), None),
    "alg None": lambda: by_hand({"alg": "None", "kid": "k1"}, claims(**ADMIN), None),
    "no alg": lambda: by_hand({"kid": "k1"}, claims(**ADMIN), None),
    "HS256 with the public key": lambda: by_hand(HS256, claims(**ADMIN), public_pem(RSA_KEY)),
    "HS256 with the key's JSON": lambda: by_hand(HS256, claims(**ADMIN), json.dumps(jwk(RSA_KEY, "k1")).encode()),
    "algorithm not allowed": lambda: signed(claims(**ADMIN), algorithm="PS256"),
    "algorithm of another key": lambda: signed(claims(**ADMIN), EC_KEY, "k1", "ES256"),
    "expired": lambda: token_of("ADMIN", exp=now() - 31),
    "not yet valid": lambda: token_of("ADMIN", nbf=now() + 400),
    "issued in the future": lambda: token_of("ADMIN", iat=now() + 400),
    "wrong issuer": lambda: token_of("ADMIN", iss=ISSUER + "/"),
    "wrong audience": lambda: token_of("ADMIN", aud="another"),
    "unknown kid": lambda: signed(claims(**ADMIN), kid="k9"),
    "no kid": lambda: signed(claims(**ADMIN), kid=None),
    "its own key": lambda: signed(claims(**ADMIN), OTHER_RSA_KEY, "k9", jwk=jwk(OTHER_RSA_KEY, "k9")),
    "key from elsewhere": lambda: signed(claims(**ADMIN), OTHER_RSA_KEY, "k9", jku="https://evil.example/jwks"),
}


@pytest.mark.parametrize("kind", BAD)
def test_no_route_takes_a_bad_token(kind: str, tmp_path: Path) -> None:
    token = BAD[kind]()
    tokens, _ = tokens_file(tmp_path / "tokens.yaml")
    with world(gate=Gate(load_tokens(tokens), oidc_of())) as api:
        for method, route, _ in ROUTES:
            response = api.call(method, route, headers=bearer(token) if token else {})
            problem(response, 401, "unauthorized")
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert ("invalid_token" in response.headers["www-authenticate"]) == bool(token)
            assert not token or token not in response.text
            api.monotonic_s += 1
        assert not api.sender.sent


@pytest.mark.parametrize("role", Role)
def test_every_route_wants_its_role(role: Role) -> None:
    token = token_of(role.name)
    with world(gate=Gate(None, oidc_of())) as api:
        for method, route, needed in ROUTES:
            status = api.call(method, route, headers=bearer(token)).status_code
            assert (status == 403) == (role < needed), (method, route)
            assert status not in (401, 429)
            assert status != 500


def test_who_has_no_role_is_known_and_may_do_nothing() -> None:
    with world(gate=Gate(None, oidc_of())) as api:
        for method, route, _ in ROUTES:
            problem(api.call(method, route, headers=bearer(signed())), 403, "forbidden")
            api.monotonic_s += 1
        assert {record["actor"] for record in api.audited} == {"oidc:maria"}


def caller(oidc: Oidc, token: str) -> Any:
    return asyncio.run(oidc.caller(token))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exp": None}, "missing"),
        ({"iss": None}, "missing"),
        ({"aud": None}, "missing"),
        ({"aud": []}, "missing|audience"),
        ({"aud": ["x", "y"]}, "audience"),
        ({"iss": [ISSUER]}, "issuer|verified"),
        ({"exp": "soon"}, "verified"),
        ({"nbf": "x"}, "verified"),
        ({"sub": None}, "nobody"),
        ({"sub": ""}, "nobody"),
        ({"sub": "a\nb"}, "nobody"),
        ({"sub": "x" * 201}, "nobody"),
    ],
)
def test_claims_that_do_not_count(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenRefused, match=says):
        caller(oidc_of(), signed(claims(**changes)))


def test_a_name_that_is_no_text() -> None:
    oidc = oidc_of(settings=SETTINGS.model_copy(update={"name_claim": "client"}))
    with pytest.raises(TokenRefused, match="nobody"):
        caller(oidc, signed(claims(client=7)))
    assert caller(oidc, signed(claims(client="shop"))).name == "oidc:shop"


@pytest.mark.parametrize("changes", [{"aud": ["x", AUDIENCE]}, {"exp": 1e10}, {"nbf": int(time.time()) + 5}])
def test_claims_that_count(changes: dict[str, Any]) -> None:
    assert caller(oidc_of(), signed(claims(**changes))).name == "oidc:maria"


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": ["b64"]}, {"typ": "logout+jwt"}, {"typ": 7}])
def test_tokens_of_another_kind(header: dict[str, Any]) -> None:
    with pytest.raises(TokenRefused, match=r"another kind|no JWT"):
        caller(oidc_of(), signed(**header))


def test_tokens_of_a_provider_of_access_tokens() -> None:
    assert caller(oidc_of(), signed(typ="at+JWT")).name == "oidc:maria"


def test_where_access_tokens_are_demanded_no_other_kind_counts() -> None:
    """An ID token has the same issuer, and may have the same audience: it says who logged in, not what they may do."""
    oidc = oidc_of(settings=SETTINGS.model_copy(update={"access_tokens_only": True}))
    for kind in ("at+jwt", "at+JWT", "application/at+jwt"):
        assert caller(oidc, signed(typ=kind)).name == "oidc:maria"
    for other in ("JWT", "jwt", None, ""):
        with pytest.raises(TokenRefused, match="another kind"):
            caller(oidc, signed(typ=other))


def test_a_token_that_is_good_for_too_long_does_not_count() -> None:
    oidc = oidc_of(settings=SETTINGS.model_copy(update={"lifetime_max_ms": 600_000}))
    at = now()
    assert caller(oidc, signed(claims(iat=at, exp=at + 600))).name == "oidc:maria"
    assert caller(oidc, signed(claims(iat=at - 500, exp=at + 100))).name == "oidc:maria"
    for changes in ({"iat": at, "exp": at + 601}, {"iat": at - 599, "exp": at + 2}, {"exp": 1e10}):
        with pytest.raises(TokenRefused, match="too long"):
            caller(oidc, signed(claims(**changes)))
    with pytest.raises(TokenRefused, match="missing"):
        caller(oidc, signed(claims(iat=None)))
    for name, value in (("iat", 1e300), ("iat", "x"), ("iat", float("nan")), ("exp", float("inf"))):
        with pytest.raises(TokenRefused):
            caller(oidc, signed(claims(**{name: value})))


def test_no_key_is_asked_for_before_the_header_is_right() -> None:
    class NoKeys:
        async def find(self, kid: str, algorithm: str) -> None:
            raise AssertionError("asked")

    oidc = Oidc(SETTINGS, NoKeys())  # type: ignore[arg-type]
    for token in ("x", "a.b.c", by_hand(HS256, claims(), b"x"), signed(kid=None), "x" * (TOKEN_CHARACTERS_MAX + 1)):
        with pytest.raises(TokenRefused):
            caller(oidc, token)


@pytest.mark.parametrize(
    ("given_claims", "claim", "role"),
    [
        ({"roles": ["tickover:read", "tickover:write", "x"]}, "roles", Role.WRITE),
        ({"roles": "tickover:admin other"}, "roles", Role.ADMIN),
        ({"scope": "openid tickover:write"}, "scope", Role.WRITE),
        ({"realm_access": {"roles": ["tickover:read"]}}, "realm_access.roles", Role.READ),
        ({"https://x.example/roles": ["tickover:admin"]}, "https://x.example/roles", Role.ADMIN),
        ({"roles": ["admin", "TICKOVER:ADMIN", "tickover:admin "]}, "roles", None),
        ({"roles": {"tickover:admin": True}}, "roles", None),
        ({"roles": [["tickover:admin"], 7, None]}, "roles", None),
        ({"roles": 7}, "roles.x", None),
        ({}, "a.b.c", None),
    ],
)
def test_roles_come_from_a_claim(given_claims: dict[str, Any], claim: str, role: Role | None) -> None:
    oidc = oidc_of(settings=SETTINGS.model_copy(update={"roles_claim": claim}))
    assert caller(oidc, signed(claims(**given_claims))).role == role


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA_KEY, "RS512"), (RSA_KEY, "PS384"), (EC_KEY, "ES256"), (ec.generate_private_key(ec.SECP384R1()), "ES384")],
)
def test_other_algorithms_when_they_are_allowed(key: Any, algorithm: str) -> None:
    allowed = OidcSettings(issuer=ISSUER, audience=(AUDIENCE,), algorithms=("RS512", "PS384", "ES256", "ES384"))
    token = signed(key=key, algorithm=algorithm)
    assert caller(oidc_of(jwk(key, "k1"), settings=allowed), token).name == "oidc:maria"
    with pytest.raises(TokenRefused):
        caller(oidc_of(jwk(key, "k1", alg="RS256"), settings=allowed), token)
    with pytest.raises(TokenRefused):
        caller(oidc_of(jwk(key, "k1", use="enc"), settings=allowed), token)


def test_short_keys_do_not_count() -> None:
    short = rsa.generate_private_key(65_537, 1_024)
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = signed(key=short)
    with pytest.raises(TokenRefused):
        caller(oidc_of(jwk(short, "k1")), token)


def test_a_shared_secret_among_the_keys_is_passed_over() -> None:
    secret = {"kty": "oct", "kid": "k1", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}
    oidc = oidc_of(secret, jwk(RSA_KEY, "k2"))
    with pytest.raises(TokenRefused):
        caller(oidc, by_hand(HS256, claims(), b"secretsecretsecretsecret"))
    assert caller(oidc, signed(kid="k2")).name == "oidc:maria"


OIDC = oidc_of()
JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5)


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "x"]), JSON), st.binary(max_size=40))
def test_whatever_comes_is_a_refusal(header: dict[str, Any], body: bytes) -> None:
    for made in ({**header}, {"alg": "RS256", "kid": "k1", **header}):
        with pytest.raises(TokenRefused):
            caller(OIDC, by_hand(made, {"x": body.hex()}, b"x"))


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub", "jti", "roles"]), JSON))
def test_whatever_a_provider_claims_is_a_caller_or_a_refusal(changes: dict[str, Any]) -> None:
    with suppress(TokenRefused):
        assert caller(OIDC, signed({**claims(), **changes})).name.startswith("oidc:")
