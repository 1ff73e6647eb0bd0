"""Signing people on at a provider: addresses, codes and tokens, and providers that answer anything."""

import asyncio
import threading
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from api.access.sign_on import KNOWN_S, PAUSE_S, REDEEMED_MAX, SignOn, SignOnFailed
from sidecar.settings.api import OidcSettings
from tests.unit.api.access.oidc_world import JwksServer, jwks_server, signed

BACK = "http://127.0.0.1:8230/ui/log-in/returned"
CHALLENGE = "1feKYP2squaeWAiJic4eC-LS4zxucSgWGrt51hG2aRA"
NONCE = "5POl09oDvJJj4BBp2XNgu-LKBi23U_EyUbONgVqHTbs"
ID_TOKEN = signed({"nonce": NONCE})


class Provider:
    """A provider with pages for people, which notes what it is asked."""

    def __init__(self, keys: JwksServer) -> None:
        self.keys = keys
        self.endpoints: dict[str, object] = {
            "authorization_endpoint": f"{keys.url}/authorize",
            "token_endpoint": f"{keys.url}/token",
        }
        self.answer: dict[str, object] = {"access_token": "a.b.c", "id_token": ID_TOKEN}
        self.forms: list[dict[str, list[str]]] = []
        self.discovered = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        keys.answer = self._answer

    async def _answer(self, request: Request) -> Response:
        if request.url.path.startswith("/.well-known"):
            self.discovered += 1
            return JSONResponse({"issuer": self.keys.issuer or self.keys.url, **self.endpoints})
        self.forms.append(parse_qs((await request.body()).decode()))
        await asyncio.to_thread(self.may_answer.wait)
        return JSONResponse(self.answer)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with jwks_server() as keys:
        yield Provider(keys)


def sign_on(provider: Provider, **settings: object) -> SignOn:
    given = {"issuer": provider.keys.url, "audience": ("tickover",), "client_id": "tickover-console", **settings}
    return SignOn(OidcSettings.model_validate(given))


def test_the_browser_is_sent_with_a_challenge(provider: Provider) -> None:
    address = asyncio.run(sign_on(provider).address("the state", "the verifier", BACK))
    asked = parse_qs(urlsplit(address).query)
    assert address.startswith(f"{provider.keys.url}/authorize?")
    assert asked == {
        "response_type": ["code"], "client_id": ["tickover-console"], "redirect_uri": [BACK],
        "scope": ["openid profile"], "state": ["the state"], "nonce": [NONCE], "code_challenge": [CHALLENGE],
        "code_challenge_method": ["S256"],
    }  # fmt: skip


def test_a_code_is_redeemed_with_the_verifier(provider: Provider) -> None:
    tokens = asyncio.run(sign_on(provider).redeem("the code", "the verifier", BACK))
    assert tokens == ["a.b.c", ID_TOKEN]
    assert provider.forms == [
        {
            "grant_type": ["authorization_code"], "code": ["the code"], "redirect_uri": [BACK],
            "client_id": ["tickover-console"], "code_verifier": ["the verifier"],
        }
    ]  # fmt: skip


def test_an_id_token_is_none_where_only_access_tokens_count(provider: Provider) -> None:
    only = sign_on(provider, access_tokens_only=True)
    assert asyncio.run(only.redeem("the code", "the verifier", BACK)) == ["a.b.c"]


@pytest.mark.parametrize("id_token", [signed({"nonce": "another"}), signed({}), "d.e.f", "", 7, ["a"]])
@pytest.mark.parametrize("only", [False, True])
def test_tokens_of_another_log_in_are_refused(provider: Provider, id_token: object, only: bool) -> None:
    provider.answer["id_token"] = id_token
    with pytest.raises(SignOnFailed, match="its ID token is of another log-in"):
        asyncio.run(sign_on(provider, access_tokens_only=only).redeem("the code", "the verifier", BACK))


@pytest.mark.parametrize("token", [None, 7, "", ["a"]])
def test_a_token_that_is_none_is_left_out(provider: Provider, token: object) -> None:
    provider.answer = {"access_token": token}
    assert asyncio.run(sign_on(provider).redeem("the code", "the verifier", BACK)) == []


@pytest.mark.parametrize(
    "endpoint", [None, 7, "http://elsewhere.example/authorize", "javascript:alert(1)", "/authorize"]
)
def test_nobody_is_sent_to_an_address_that_is_not_of_https(provider: Provider, endpoint: object) -> None:
    provider.endpoints["authorization_endpoint"] = endpoint
    with pytest.raises(SignOnFailed, match="names no https address as its authorization endpoint"):
        asyncio.run(sign_on(provider).address("s", "c", BACK))


def test_another_issuer_is_refused(provider: Provider) -> None:
    provider.keys.issuer = "https://other.example"
    with pytest.raises(SignOnFailed, match="names another issuer"):
        asyncio.run(sign_on(provider).address("s", "c", BACK))


def test_a_provider_that_is_away_is_said_without_the_code() -> None:
    away = SignOn(OidcSettings(issuer="http://127.0.0.1:1", audience=("t",), client_id="c"))
    with pytest.raises(SignOnFailed, match="can't be asked") as raised:
        asyncio.run(away.redeem("the code", "the verifier", BACK))
    assert "the code" not in str(raised.value)


def test_what_a_provider_says_of_itself_is_asked_for_once_whoever_asks(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sign_on(provider)

    async def ask(times: int) -> set[str]:
        return set(await asyncio.gather(*(here.address("s", "v", BACK) for _ in range(times))))

    assert len(asyncio.run(ask(20))) == 1
    assert provider.discovered == 1
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + KNOWN_S + 1)
    assert len(asyncio.run(ask(1))) == 1
    assert provider.discovered == 2


def test_a_provider_of_another_issuer_is_asked_again_soon(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    here, provider.keys.issuer = sign_on(provider), "https://other.example"
    for _ in range(3):
        with pytest.raises(SignOnFailed, match="names another issuer"):
            asyncio.run(here.address("s", "v", BACK))
    assert provider.discovered == 1
    provider.keys.issuer = ""
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + PAUSE_S)
    assert asyncio.run(here.address("s", "v", BACK)).startswith(provider.keys.url)


def test_so_many_codes_are_redeemed_at_once(provider: Provider) -> None:
    here = sign_on(provider)
    provider.may_answer.clear()

    async def redeem() -> None:
        codes = map(str, range(REDEEMED_MAX + 1))
        under_way = [asyncio.create_task(here.redeem(code, "the verifier", BACK)) for code in codes]
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        [refused] = done
        with pytest.raises(SignOnFailed, match="too many log-ins"):
            await refused
        provider.may_answer.set()
        assert len([await task for task in under_way if task is not refused]) == REDEEMED_MAX
        assert await here.redeem("another", "the verifier", BACK) == ["a.b.c", ID_TOKEN]

    asyncio.run(redeem())
