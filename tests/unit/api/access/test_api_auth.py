import json
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from api.access.auth import AccessConfigError, Caller, Role, Tokens, load_tokens, new_token
from sidecar.settings.api import ApiSettings
from tests.unit.api_world import REMINDERS, World, problem, world

pytestmark = pytest.mark.slow

ROUTES = [
    ("GET", "/v1/policies", Role.READ),
    ("GET", "/v1/policies/x", Role.READ),
    ("GET", "/v1/policies/x/versions", Role.READ),
    ("GET", "/v1/schemas/policy", Role.READ),
    ("POST", "/v1/policies/explain", Role.READ),
    ("GET", "/v1/stats", Role.READ),
    ("GET", "/v1/overview", Role.READ),
    ("GET", "/v1/events", Role.READ),
    ("GET", "/v1/capacity", Role.READ),
    ("GET", "/v1/replicas", Role.READ),
    ("GET", "/v1/lateness", Role.READ),
    ("GET", "/v1/dead-letters", Role.READ),
    ("GET", "/v1/dead-letters/groups", Role.READ),
    ("GET", "/v1/dead-letters/x/x/x", Role.READ),
    ("PUT", "/v1/dead-letters/x/groups/x", Role.WRITE),
    ("GET", "/metrics", Role.READ),
    ("POST", "/v1/messages", Role.WRITE),
    ("POST", "/v1/messages:batch", Role.WRITE),
    ("GET", "/v1/redrives", Role.READ),
    ("GET", "/v1/redrives/x", Role.READ),
    ("POST", "/v1/redrives", Role.WRITE),
    ("POST", "/v1/redrives/x/canary", Role.WRITE),
    ("POST", "/v1/redrives/x/run", Role.WRITE),
    ("POST", "/v1/redrives/x/abort", Role.WRITE),
    ("POST", "/v1/redrives/x/approve", Role.WRITE),
    ("GET", "/v1/changes", Role.READ),
    ("GET", "/v1/changes/x", Role.READ),
    ("GET", "/v1/changes/x/receipts", Role.READ),
    ("POST", "/v1/changes", Role.WRITE),
    ("POST", "/v1/changes/x/run", Role.WRITE),
    ("POST", "/v1/changes/x/abort", Role.WRITE),
    ("POST", "/v1/changes/x/approve", Role.WRITE),
    ("GET", "/v1/messages", Role.READ),
    ("GET", "/v1/messages/x", Role.READ),
    ("DELETE", "/v1/messages/x", Role.WRITE),
    ("PATCH", "/v1/messages/x", Role.WRITE),
    ("POST", "/v1/messages/x/fire", Role.WRITE),
    ("GET", "/v1/forecast", Role.READ),
    ("GET", "/v1/pauses", Role.READ),
    ("PUT", "/v1/pauses/target/x", Role.ADMIN),
    ("DELETE", "/v1/pauses/target/x", Role.ADMIN),
    ("GET", "/v1/targets", Role.READ),
    ("POST", "/v1/targets/x/close-breaker", Role.ADMIN),
    ("POST", "/v1/targets/x/open-breaker", Role.ADMIN),
    ("GET", "/v1/schedules", Role.READ),
    ("GET", "/v1/schedules/x", Role.READ),
    ("GET", "/v1/schedules/x/next", Role.READ),
    ("GET", "/v1/schedules/x/runs", Role.READ),
    ("POST", "/v1/schedules/x/run", Role.WRITE),
    ("PUT", "/v1/schedules/x", Role.ADMIN),
    ("DELETE", "/v1/schedules/x", Role.ADMIN),
    ("POST", "/v1/schedules/x/rewind", Role.ADMIN),
    ("PUT", "/v1/policies/x", Role.ADMIN),
    ("DELETE", "/v1/policies/x", Role.ADMIN),
    ("POST", "/v1/policies/x/rollback", Role.ADMIN),
    ("GET", "/v1/whoami", Role.READ),
    ("GET", "/v1/quarantine", Role.READ),
    ("GET", "/v1/quarantine/x/x", Role.READ),
    ("POST", "/v1/quarantine/x/x/send", Role.WRITE),
    ("GET", "/v1/audit", Role.ADMIN),
    ("GET", "/v1/doctor", Role.READ),
    ("GET", "/v1/settings", Role.ADMIN),
]
OPEN = ["/livez", "/readyz", "/openapi.json", "/docs"]


def tokens_file(path: Path) -> tuple[Path, dict[Role, str]]:
    made = {role: new_token() for role in Role}
    entries = [{"name": role.name, "role": role.name.lower(), "hash": made[role][1]} for role in Role]
    path.write_text(json.dumps(entries))
    return path, {role: token for role, (token, _) in made.items()}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_every_route_and_role(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        for method, route, needed in ROUTES:
            response = api.call(method, route)
            problem(response, 401, "unauthorized")
            assert response.headers["www-authenticate"].startswith("Bearer")
            for role in Role:
                status = api.call(method, route, headers=bearer(given[role])).status_code
                assert (status == 403) == (role < needed), (method, route, role)
                assert status != 401
        for route in OPEN:
            assert api.call("GET", route).status_code == 200


def test_no_route_is_forgotten() -> None:
    with world() as api:
        document = api.call("GET", "/openapi.json").json()
        listed = {
            (method.upper(), re.sub(r"\{\w+\}", "x", path.replace("{kind}", "target")))
            for path, operations in document["paths"].items()
            for method in operations
        }
        assert listed == {(method, path) for method, path, _ in ROUTES} | {
            ("GET", "/livez"),
            ("GET", "/readyz"),
            ("GET", "/problems/x"),
        }


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic dTpw", "{token}", "Bearer {token}x"]
)
def test_wrong_tokens(tmp_path: Path, header: str) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        value = header.format(token=given[Role.ADMIN])
        problem(api.call("GET", "/v1/stats", headers={"authorization": value}), 401, "unauthorized")


def test_who_has_no_token_sends_no_body(tmp_path: Path) -> None:
    path, _ = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        problem(api.send_raw("POST", "/v1/messages", b"{"), 401, "unauthorized")


def test_the_author_is_the_token_name(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        headers = {**bearer(given[Role.ADMIN]), "if-none-match": "*"}
        assert api.call("PUT", "/v1/policies/reminders", json=REMINDERS, headers=headers).status_code == 201
        assert api.policies.versions("reminders")[0].author == "ADMIN"


def test_idempotency_keys_of_two_callers_do_not_meet(tmp_path: Path) -> None:
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(tokens=load_tokens(path)) as api:
        api.add(REMINDERS)
        answers = [
            api.call(
                "POST",
                "/v1/messages",
                json={"target": "push", "value": role.name},
                headers={**bearer(given[role]), "idempotency-key": "k"},
            )
            for role in (Role.WRITE, Role.ADMIN)
        ]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].json()["id"] != answers[1].json()["id"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8230", "10.0.0.1:8230", "127.0.0.1.evil.example", ""])
def test_without_tokens_only_as_localhost(host: str) -> None:
    with world() as api:
        problem(api.call("GET", "/v1/stats", headers={"host": host}), 403, "host-not-allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8230", "[::1]:8230", "[::1]"])
def test_localhost_has_many_names(host: str) -> None:
    with world() as api:
        assert api.call("GET", "/v1/stats", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_tokens(host: str) -> None:
    assert not ApiSettings(host=host).authenticates


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_any_other_host_needs_tokens_or_a_plain_word(host: str) -> None:
    with pytest.raises(ValidationError) as raised:
        ApiSettings(host=host)
    for way_out in ("api.tokens_file must be set", "api.oidc.issuer", "127.0.0.1", "api.allow_unauthenticated=true"):
        assert way_out in str(raised.value)
    assert ApiSettings(host=host, tokens_file="tokens.yaml").authenticates
    assert not ApiSettings(host=host, allow_unauthenticated=True).authenticates


HASH = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a list"),
        ("[]", "must be a list"),
        ("{}", "must be a list"),
        ("[", "is not YAML"),
        ("[!!timestamp secret]", "is not YAML"),
        ("[" * 5_000, "is not YAML"),
        ("[1]", "exactly name, role and hash"),
        (f"[{{name: a, role: read, hash: '{HASH}', x: 1}}]", "entry 1: exactly"),
        (f"[{{name: a, role: root, hash: '{HASH}'}}]", "role must be"),
        (f"[{{name: '', role: read, hash: '{HASH}'}}]", "name must be"),
        ("[{name: a, role: read, hash: secret}]", "hash must be"),
        (f"[{{name: a, role: read, hash: '{HASH}', expires: soon}}]", "entry 1: expires must be"),
        (f"[{{name: a, role: read, hash: '{HASH}', expires: 2027-01-31}}]", "entry 1: expires must be"),
        (f"[{{name: a, role: read, hash: '{HASH}', expires: 2027-01-31T00:00:00}}]", "entry 1: expires must be"),
        (f"[{{name: a, role: read, hash: '{HASH}', expires: 7}}]", "entry 1: expires must be"),
        (f"[{{name: a, role: read, hash: '{HASH}'}}, {{name: b, role: read, hash: '{HASH}'}}]", "same hash"),
    ],
)
def test_bad_tokens_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(text)
    with pytest.raises(AccessConfigError, match=said) as raised:
        load_tokens(path)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("written", ["2027-01-31T00:00:00Z", "'2027-01-31T00:00:00Z'", "2027-01-31T01:00:00+01:00"])
def test_a_token_is_nobodys_from_its_end_on(tmp_path: Path, written: str) -> None:
    path, (token, digest) = tmp_path / "tokens.yaml", new_token()
    path.write_text(f"[{{name: a, role: read, hash: '{digest}', expires: {written}}}]")
    now_s = datetime(2027, 1, 30, 23, 59, 59, tzinfo=UTC).timestamp()
    tokens = Tokens(path, lambda: now_s)
    assert tokens.caller(token) == Caller("a", Role.READ)
    now_s += 1
    assert tokens.caller(token) is None


def test_tokens_change_under_load_with_their_file(tmp_path: Path) -> None:
    """A new file counts at the next look, a broken one changes nothing: nobody is refused, or let in, by mistake."""
    kept, given = tmp_path / "tokens.yaml", [new_token() for _ in range(3)]

    def write(*numbers: int) -> None:
        kept.write_text(json.dumps([{"name": str(n), "role": "read", "hash": given[n][1]} for n in numbers]))

    write(0, 1)
    with world(tokens=(tokens := load_tokens(kept))) as api, ThreadPoolExecutor(1) as other:
        look = tokens.file.look
        assert look() is None

        def statuses() -> list[int]:
            return [api.call("GET", "/v1/stats", headers=bearer(token)).status_code for token, _ in given]

        def rotate() -> None:
            for number in range(40):
                write(0, 2 - number % 2)
                assert look() is True

        rotating = other.submit(rotate)
        while not rotating.done():
            first, *others = statuses()
            assert first == 200
            assert set(others) <= {200, 401}
        rotating.result()
        assert statuses() == [200, 200, 401]
        for broken in ("", "[", "[]", "[{name: x, role: admin}]"):
            kept.write_text(broken)
            assert [look(), look(), statuses()] == [False, None, [200, 200, 401]]
        kept.unlink()
        assert [look(), look(), statuses()] == [False, None, [200, 200, 401]], "it is said that it is gone"
        replacement = tmp_path / "other"
        replacement.write_text(json.dumps([{"name": "2", "role": "read", "hash": given[2][1]}]))
        replacement.rename(kept)
        assert [look(), statuses()] == [True, [401, 401, 200]]


def test_missing_tokens_file(tmp_path: Path) -> None:
    with pytest.raises(AccessConfigError, match="can't be read"):
        load_tokens(tmp_path / "none")


def test_open_world_has_no_tokens() -> None:
    with world() as api:
        assert isinstance(api, World)
        assert api.call("GET", "/v1/stats").status_code == 200
