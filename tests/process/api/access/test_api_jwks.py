"""The cache of a provider's keys, and asking for them over HTTP."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from api.access.auth import KeysUnavailable
from api.access.gate import Gate, open_gate
from api.access.jwks import (
    KEYS_MAX,
    PAUSE_S,
    RETRY_MAX_S,
    RETRY_S,
    DocumentError,
    Keys,
    Provider,
    usable_keys,
)
from sidecar.settings.api import ApiSettings, OidcSettings
from tests.unit.api.access.oidc_world import (
    AUDIENCE,
    EC_KEY,
    OTHER_RSA_KEY,
    RSA_KEY,
    JwksServer,
    claims,
    jwk,
    jwks_server,
    signed,
)
from tests.unit.api.access.test_api_auth import bearer
from tests.unit.api_world import problem, world

pytestmark = pytest.mark.slow

ALGORITHMS = ("RS256", "ES256")
MAX_AGE_S = 600.0
STALE_MAX_S = 3_600.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider on this machine is not away because the machine is busy."""
    monkeypatch.setattr("api.access.jwks.FETCH_S", 60.0)


class Source:
    """A provider: its answers, and when they come."""

    def __init__(self) -> None:
        self.kids = ["k1"]
        self.now_s = 1_000.0
        self.asked = 0
        self.failure: Exception | None = None
        self.begun = asyncio.Event()
        self.held_back: asyncio.Event | None = None
        self.keys = Keys(self.fetch, MAX_AGE_S, STALE_MAX_S, lambda: self.now_s)

    async def fetch(self) -> Any:
        self.asked += 1
        self.begun.set()
        if self.held_back:
            await self.held_back.wait()
        if self.failure:
            raise self.failure
        return usable_keys({"keys": [jwk(RSA_KEY, kid) for kid in self.kids]}, ALGORITHMS)

    async def knows(self, kid: str) -> bool:
        return await self.keys.find(kid, "RS256") is not None


def driven(test: Callable[[Source], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test(Source()))  # type: ignore[arg-type]

    return run


@driven
async def test_keys_are_asked_for_once(source: Source) -> None:
    assert source.asked == 0
    for _ in range(100):
        assert await source.knows("k1")
    source.now_s += MAX_AGE_S
    assert await source.knows("k1")
    assert source.asked == 1


@driven
async def test_a_new_key_is_found(source: Source) -> None:
    assert await source.knows("k1")
    source.kids = ["k1", "k2"]
    source.now_s += PAUSE_S
    assert await source.knows("k2")
    assert source.asked == 2


@driven
async def test_unknown_keys_do_not_make_us_a_nuisance(source: Source) -> None:
    for _ in range(100):
        assert not await source.knows("k9")
        source.now_s += 1
    assert source.asked == 100 / PAUSE_S


@driven
async def test_a_key_that_was_withdrawn_is_gone(source: Source) -> None:
    assert await source.knows("k1")
    source.kids = ["k2"]
    source.now_s += MAX_AGE_S + 1
    assert not await source.knows("k1")


@driven
async def test_old_keys_go_on_while_the_provider_is_away(source: Source) -> None:
    assert await source.knows("k1")
    source.failure = OSError()
    source.now_s += STALE_MAX_S
    assert await source.knows("k1")
    with pytest.raises(KeysUnavailable):  # nobody knows whether it is a new key
        await source.knows("k2")
    source.now_s += 1
    with pytest.raises(KeysUnavailable):
        await source.knows("k1")
    source.failure = None
    source.now_s += RETRY_MAX_S
    assert await source.knows("k1")


@driven
async def test_a_provider_that_is_away_is_asked_ever_less(source: Source) -> None:
    source.failure = DocumentError("the provider answers 500")
    asked_at = []
    for second in range(300):
        before = source.asked
        with pytest.raises(KeysUnavailable) as raised:
            await source.knows("k1")
        assert 1 <= raised.value.retry_s <= RETRY_MAX_S
        asked_at += [second] * (source.asked - before)
        source.now_s += 1
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert set(pauses[6:]) == {RETRY_MAX_S}
    source.failure = None
    source.now_s += RETRY_MAX_S
    assert await source.knows("k1")


@driven
async def test_all_who_wait_are_served_by_one_request(source: Source) -> None:
    source.held_back = asyncio.Event()
    waiting = [asyncio.create_task(source.knows("k1")) for _ in range(20)]
    await source.begun.wait()
    waiting[0].cancel()  # who asked first goes away: the others still get their answer
    source.held_back.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [True] * 19
    assert source.asked == 1


def test_a_provider_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        source = Source()
        source.held_back = asyncio.Event()  # never set
        with monkeypatch.context() as hasty:
            hasty.setattr("api.access.jwks.FETCH_S", 0.01)
            with pytest.raises(KeysUnavailable):
                await source.knows("k1")
        source.held_back = None
        source.now_s += RETRY_S
        assert await source.knows("k1")

    asyncio.run(ask())


@pytest.mark.parametrize("document", [{}, {"keys": {}}, {"keys": None}, {"keys": [{}] * (KEYS_MAX + 1)}])
def test_what_is_no_key_set(document: dict[str, Any]) -> None:
    with pytest.raises(DocumentError):
        usable_keys(document, ALGORITHMS)


def test_what_is_no_usable_key_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    good = jwk(RSA_KEY, "k1")
    odd: list[Any] = [
        None, 7, {}, {"kid": "k1"}, {"kid": 7, "kty": "RSA"}, {**good, "kid": None}, {**good, "kid": "a", "use": "enc"},
        {**good, "kid": "b", "n": "!"}, {**good, "kid": "c", "n": 7}, {**good, "kid": "d", "kty": "oct"},
        {**good, "kid": "e", "alg": "RS384"}, {**jwk(EC_KEY, "f"), "crv": "P-384"}, {"kty": "RSA", "kid": "g"},
    ]  # fmt: skip
    assert set(usable_keys({"keys": [*odd, good, jwk(EC_KEY, "k2")]}, ALGORITHMS)) == {("k1", "RS256"), ("k2", "ES256")}


def settings_of(provider: JwksServer, **changes: Any) -> OidcSettings:
    return OidcSettings(issuer=provider.url, audience=(AUDIENCE,), **changes)


def fetched(settings: OidcSettings) -> set[str]:
    return {kid for kid, _ in asyncio.run(Provider(settings).fetch())}


def test_the_provider_says_where_its_keys_are() -> None:
    with jwks_server() as provider:
        assert fetched(settings_of(provider)) == {"k1"}
        assert provider.asked == ["/.well-known/openid-configuration", "/jwks"]
        provider.asked.clear()
        assert fetched(settings_of(provider, jwks_url=f"{provider.url}/mine")) == {"k1"}
        assert provider.asked == ["/mine"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"issuer": "https://other.example"}, "another issuer"),
        ({"jwks_uri": "http://login.example/jwks"}, "no https address"),
        ({"jwks_uri": "file:///etc/passwd"}, "no https address"),
        ({"jwks_uri": 7}, "no https address"),
        ({"status": 500}, "answers 500"),
        ({"status": 302}, "answers 302"),
        ({"body": b"{"}, "not JSON"),
        ({"body": b"[" * 100_000}, "not JSON"),
        ({"body": b"[]"}, "no JSON object"),
        ({"body": b" " * ((1 << 20) + 1)}, "larger"),
    ],
)
def test_answers_that_are_no_keys(change: dict[str, Any], says: str) -> None:
    with jwks_server() as provider:
        for name, value in change.items():
            setattr(provider, name, value)
        with pytest.raises(DocumentError, match=says):
            fetched(settings_of(provider))
        assert "/elsewhere" not in provider.asked


def test_keys_change_while_the_api_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with jwks_server() as provider:
        now_s = [0.0]
        gate = open_gate(ApiSettings(oidc=settings_of(provider)), lambda: now_s[0])
        mine = {"iss": provider.url, "roles": ["tickover:read"]}
        old, new = signed(claims(**mine)), signed(claims(**mine), OTHER_RSA_KEY, "k2")
        with world(gate=gate) as api:

            def answered(token: str) -> int:
                return api.call("GET", "/v1/stats", headers=bearer(token)).status_code

            assert (answered(old), answered(new)) == (200, 401)
            provider.keys = [jwk(OTHER_RSA_KEY, "k2")]
            now_s[0] += PAUSE_S
            assert (answered(new), answered(old)) == (200, 401)
            provider.status = 503
            now_s[0] += 601
            assert (answered(new), answered(old)) == (200, 503)
            response = api.call("GET", "/v1/stats", headers=bearer(old))
            problem(response, 503, "keys-unavailable")
            assert int(response.headers["retry-after"]) >= 1
            assert len(provider.asked) <= 6
    assert "can't be fetched" in caplog.text
    assert old.rpartition(".")[2] not in caplog.text


def test_without_a_provider_no_key_is_asked_for() -> None:
    gate = open_gate(ApiSettings(), lambda: 0.0)
    assert (gate.oidc, gate.tokens, gate.anybody) == (None, None, False)
    assert isinstance(gate, Gate)
