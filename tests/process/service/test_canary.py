"""A mark is put into every field that somebody gives us, and looked for wherever something of us can be read.

That is: log lines at debug, metrics, error bodies and their headers, audit records, texts of exceptions, what commands
write. What names something (a policy, a topic, a message's id, an error class or reason to look for, a field) may be
shown: an error or an audit record would say nothing without it. Nothing else may. Fields and parameters come from the
OpenAPI document, so that a new one is marked, or fails a test. What answers show, to whom, is in `test_api_roles`.
"""

import io
import json
import logging
import os
import re
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from api.access.auth import Role, load_tokens
from api.access.gate import Gate
from api.ports import SenderUnavailable
from policies.errors import PolicyFileError
from policies.file import parse_policies
from sidecar.cli.app import app
from sidecar.doctor.redis import inspect
from sidecar.kafka.client_settings import client_log
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.overflow.redis_overflow import open_overflow
from sidecar.service.logs import configure_logs
from sidecar.settings.settings import ConfigError, LogSettings, load_settings
from tests.services.waiting import wait_until
from tests.unit.api.access.oidc_world import RSA_KEY, by_hand, claims, oidc_of, public_pem, signed
from tests.unit.api.access.test_api_auth import ROUTES, bearer, tokens_file
from tests.unit.api_world import REMINDERS, RETRY, World, world

CANARY = "canary-5f3a9"
# Each is in some text of ours under another name: the same in base64, in hexadecimal, in a URL.
FORMS = (CANARY, "Y2FuYXJ5LTVmM2E5", CANARY.encode().hex(), "canary%2D5f3a9")
TICK: dict[str, Any] = {"target": "push", "key": "k", "value": "v", "headers": [["h", "x"]]}
pytestmark = [pytest.mark.usefixtures("logging_as_before"), pytest.mark.slow]

MESSAGE: dict[str, Any] = {"target": "push", "key": "k", "value": "v", "headers": {"h": "x"}, "delay": "15m"}
RECORD: dict[str, Any] = {"topic": "reminders", "headers": [["h", "x"]]}
# The others look a while for a message that isn't there.
QUICK_ROUTES = [route for route in ROUTES if not route[1].startswith("/v1/messages/x")]
NAMES = {"name", "id", "target", "source", "topic", "policy", "error_class", "reason"}


@pytest.fixture
def log() -> io.StringIO:
    stream = io.StringIO()
    configure_logs(LogSettings(level="debug"), stream)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the client here, which logs what it asks for
    return stream


def seen_in(text: str) -> list[str]:
    return [form for form in FORMS if form.lower() in text.lower()]


class Watched:
    """An API whose every answer is looked at."""

    def __init__(self, api: World, token: str) -> None:
        self.api = api
        self.token = token
        self.refusals = 0

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        options["headers"] = {**bearer(self.token), **options.get("headers", {})}
        response = self.api.call(method, path, **options)
        self.api.monotonic_s += 1
        if response.status_code >= 400:
            self.refusals += 1
            assert not seen_in(f"{response.headers} {response.text}"), (method, path, response.text)
        return response


@contextmanager
def watched(log: io.StringIO, tmp_path: Any) -> Iterator[Watched]:
    """Looks at the answers on the way, and at the end at logs, metrics and audit records."""
    path, given = tokens_file(tmp_path / "tokens.yaml")
    with world(gate=Gate(load_tokens(path), oidc_of())) as api:
        api.add(REMINDERS)
        api.add(RETRY)
        watch = Watched(api, given[Role.ADMIN])
        yield watch
        metrics = api.call("GET", "/metrics", headers=bearer(given[Role.READ])).text
        audited = "\n".join(str((record.key, record.value, record.headers)) for record in api.audit.sent)
        for place, text in (("log", log.getvalue()), ("metrics", metrics), ("audit", audited)):
            assert not seen_in(text), place
            assert watch.token not in text, place
        assert "tickover_build_info" in metrics
        assert watch.refusals


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values that are no containers, and of all names of fields."""
    pairs: Any = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in pairs:
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


def marked(document: Any, path: tuple[Any, ...], mark: Any) -> Any:
    """The document with something else at one place."""
    changed = json.loads(json.dumps(document))
    inside = changed
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = mark
    return changed


MARKS = (CANARY, [CANARY], {"x": CANARY}, {"base64": CANARY}, f"\ud800{CANARY}", f"{CANARY}\n")


def bad_tokens() -> list[str]:
    body = claims(sub=CANARY, roles=[CANARY], other=CANARY)
    return [
        f"{CANARY}.{CANARY}.{CANARY}",
        by_hand({"alg": "none", "kid": CANARY}, body, None),
        by_hand({"alg": CANARY, "kid": "k1"}, body, None),
        by_hand({"alg": "HS256", "kid": "k1"}, body, public_pem(RSA_KEY)),
        signed({**body, "exp": 1}),
        signed({**body, "aud": CANARY}),
        signed({**body, "iss": CANARY}),
        signed({**body, "exp": CANARY}),
        signed(body, kid=CANARY),
        signed(body, crit=[CANARY]),
        signed(body, typ=CANARY),
    ]


def parameters(place: str) -> set[str]:
    """The names of all parameters that some route takes in its query or its headers."""
    given = [one for operation in described().values() for one in operation.get("parameters", ())]
    return {one["name"] for one in given if one["in"] == place}


def test_no_token_leaves_the_api(log: io.StringIO, tmp_path) -> None:
    with watched(log, tmp_path) as watch:
        schemes = [f"Bearer {token}" for token in bad_tokens()]
        for value in (*schemes, f"Basic {CANARY}", CANARY, f"Bearer {watch.token}{CANARY}"):
            for method, route, _ in ROUTES[::5]:
                assert watch.call(method, route, headers={"authorization": value}).status_code == 401


def test_no_header_leaves_the_api(log: io.StringIO, tmp_path) -> None:
    foreign = (
        "cookie", "content-type", "content-encoding", "accept",
        "referer", "user-agent", "x-forwarded-for", "expect", "range", "origin", "host", "x-anything",
    )  # fmt: skip
    names = (*sorted(parameters("header")), *foreign)
    with watched(log, tmp_path) as watch:
        for method, route, _ in ROUTES:
            watch.call(method, route, headers=dict.fromkeys(names[:-4], CANARY))
        for name in names:
            for method, route, _ in QUICK_ROUTES:
                watch.call(method, route, headers={name: CANARY})
            watch.call("POST", "/v1/messages", json=MESSAGE | {"target": "nowhere"}, headers={name: CANARY})


WHOLE_DELAY: dict[str, Any] = {
    **REMINDERS,
    "match": {"topics": ["reminders"], "headers": {"h": "x"}},
    "delay": {"default": "15m", "max": "400d", "spread": "1s", "spread_max": "2s"},
    "quota": {"records": 5, "bytes": 6},
    "target": {"topic": "push", "allow": ["push"], "rate": "500/s", "burst": 5},
    "dead_letter": {"topic": "dead"},
}
WHOLE_RETRY: dict[str, Any] = {
    **RETRY,
    "retry": {
        **RETRY["retry"],
        "backoff": {"kind": "exponential", "initial": "1s", "factor": 2, "max": "10m", "jitter": "full"},
        "timeout": "1d", "retry_on": ["*"], "give_up_on": ["X"], "spread": "1s", "spread_max": "2s",
        "breaker": {"failures": "50%", "window": "1m", "minimum": 5, "open": "30s", "probes": 5},
    },
    "order": {"by": "key", "parked_max": 5, "when_full": "pause"},
}  # fmt: skip
BACKOFFS: list[dict[str, Any]] = [{"kind": "fixed", "delay": "1s"}, {"kind": "list", "delays": ["1s"]}]
POLICIES: list[dict[str, Any]] = [
    WHOLE_DELAY,
    WHOLE_RETRY,
    *({**RETRY, "retry": {"attempts": 5, "backoff": backoff}} for backoff in BACKOFFS),
]
HELD: dict[str, Any] = {
    "topic": "reminders", "partition": 3, "policy": "reminders", "target": "push", "key_prefix": "k",
    "error_class": "X", "due_from": 1, "due_to": 2, "id": "i", "header": "h=x", "ids": ["i"],
}  # fmt: skip
LETTERS: dict[str, Any] = {
    "reason": "expired", "fingerprint": "0" * 16, "error_class": "X", "policy": "orders", "since": 1, "until": 2,
    "error": "e", "id": "i", "key_prefix": "k", "header": "h=x",
}  # fmt: skip
LIMITS: dict[str, Any] = {"target": "orders", "rate": 1, "ramp": "1s", "stop_share": 0.5, "watch": "1s"}
NAMED: dict[str, Any] = {"topic": "orders-dlq", "letters": ["orders-dlq/0/0"]}
WHOLE_RECORD: dict[str, Any] = {**RECORD, "partition": 1, "offset": 2, "timestamp": 3, "key": "k", "value": "v"}
MORE: dict[str, Any] = {
    "source": "reminders",
    "spread": "1s",
    "expires_at": 32_503_680_000_000,
    "target_partition": 0,
    "id": "i",
}
WHOLE_TICK: dict[str, Any] = {
    **TICK, "name": "tick", "source": "reminders", "cron": "0 9 * * *", "time_zone": "UTC", "missed": "all",
    "paused": True, "start": 100_000_000_000, "end": 200_000_000_000,
}  # fmt: skip
# By method and path, every field of every body at least once: a test compares them with the OpenAPI document.
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/messages", {**MESSAGE, **MORE}),
    ("POST", "/v1/messages", {**MESSAGE, "headers": [["h", "x"]], "deliver_at": 100_000_000_000, "delay": None}),
    ("POST", "/v1/messages:batch", {"messages": [{**MESSAGE, **MORE}, {"target": "push", "deliver_at": 1}]}),
    ("PATCH", "/v1/messages/x", {"delay": "1m"}),
    ("PATCH", "/v1/messages/x", {"deliver_at": 100_000_000_000}),
    *(("PUT", f"/v1/policies/{policy['name']}", policy) for policy in POLICIES),
    *(("POST", "/v1/policies/explain", {"policy": policy, "record": WHOLE_RECORD}) for policy in POLICIES),
    ("POST", "/v1/policies/explain", {"policy": POLICIES[0], "record": {"place": "reminders/1/2", "headers": {}}}),
    ("POST", "/v1/policies/reminders/rollback", {"version": 1}),
    ("POST", "/v1/schedules/tick/rewind", {"to": 100_000_000_000}),
    ("POST", "/v1/redrives", {"topic": "orders-dlq", "filter": LETTERS, **LIMITS, "confirm_all": True, "again": True}),
    ("POST", "/v1/redrives", {**NAMED, "edit": {"merge": {"amount": 3}, "key": "k", "headers": {"h": "x"}}}),
    ("PUT", f"/v1/dead-letters/orders-dlq/groups/{'0' * 16}", {"state": "known", "note": "n"}),
    ("POST", "/v1/redrives", {**NAMED, "edit": {"value": "v"}}),
    ("POST", "/v1/redrives", {**NAMED, "action": "discard"}),
    ("POST", "/v1/redrives/x/canary", {"count": 1}),
    ("POST", "/v1/quarantine/0/0/send", {"key": "k", "value": "v", "headers": [["h", "x"]], "without": ["g"]}),
    ("POST", "/v1/changes", {"action": "cancel", "filter": HELD, "rate": 1, "confirm_all": True}),
    *(
        ("POST", "/v1/changes", {"action": "reschedule", "filter": {"key_prefix": "k"}, time: 1})
        for time in ("delay", "deliver_at", "by")
    ),
    ("POST", "/v1/changes/x/run", {"token": "t"}),
    ("PUT", "/v1/schedules/tick", WHOLE_TICK),
    ("PUT", "/v1/pauses/target/push", {"reason": "a release", "until": 32_503_680_000_000}),
]


def described() -> dict[str, dict[str, Any]]:
    """The operations of the OpenAPI document, by method and path."""
    paths = World().app.openapi()["paths"]
    return {f"{method.upper()} {path}": operation for path, each in paths.items() for method, operation in each.items()}


def fields_of(schema: dict[str, Any], schemas: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The fields that a body of this schema may have; without base64, which stands wherever text may (`MARKS`)."""
    if reference := schema.get("$ref"):
        yield from fields_of(schemas[reference.rpartition("/")[2]], schemas, path)
    inside = [one for word in ("anyOf", "oneOf", "allOf", "prefixItems") for one in schema.get(word, ())]
    for one in (*inside, schema.get("items"), schema.get("additionalProperties")):
        if isinstance(one, dict):
            yield from fields_of(one, schemas, path)
    for name, one in schema.get("properties", {}).items():
        if name != "base64":
            yield (*path, name)
            yield from fields_of(one, schemas, (*path, name))


def test_every_field_of_every_body_is_marked() -> None:
    schemas = World().app.openapi()["components"]["schemas"]
    missing: dict[str, set[tuple[str, ...]]] = {}
    for name, operation in described().items():
        if "requestBody" not in operation:
            continue
        method, path = re.sub(r"\{\w+\}", "[^/]+", name).split(" ")
        bodies = [body for of, at, body in BODIES if of == method and re.fullmatch(path, at)]
        marked_places = {
            tuple(step for step in place[:length] if isinstance(step, str))
            for body in bodies
            for place in leaves(body)
            for length in range(1, len(place) + 1)
        }
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        missing[name] = set(fields_of(schema, schemas)) - marked_places
    assert {name: fields for name, fields in missing.items() if fields} == {}, "put the new fields into BODIES"


@pytest.mark.parametrize(
    ("method", "path", "body"), BODIES, ids=[f"{number} {case[0]} {case[1]}" for number, case in enumerate(BODIES)]
)
def test_no_field_of_a_request_leaves_the_api(
    log: io.StringIO, tmp_path, method: str, path: str, body: dict[str, Any]
) -> None:
    with watched(log, tmp_path) as watch:
        for place in leaves(body):
            for mark in MARKS:
                if place[-1] in NAMES and isinstance(mark, str):
                    continue
                text = json.dumps(marked(body, place, mark))
                headers = {"content-type": "application/json", "if-match": "*"}
                watch.call(method, path, content=text, headers=headers)
        whole = json.dumps(marked(body, next(leaves(body)), CANARY))
        for broken in (
            whole[:-1],
            whole + CANARY,
            f'{{"a": {CANARY}}}',
            f'{{"a": 1e999, "b": "{CANARY}"}}',
            "[" * 5_000,
        ):
            watch.call(method, path, content=broken, headers={"content-type": "application/json"})
        watch.call(method, path, content=whole.encode() + b"\xff", headers={"content-type": "application/json"})
        watch.call(method, path, content=whole, headers={"content-type": "text/plain"})


def test_no_payload_leaves_the_api_when_kafka_fails(log: io.StringIO, tmp_path) -> None:
    body = {**MESSAGE, "key": CANARY, "value": CANARY, "headers": [["h", CANARY]]}
    failures: list[Callable[[], Exception]] = [
        lambda: SenderUnavailable("away"), lambda: ZeroDivisionError(CANARY), lambda: OSError(CANARY),
        lambda: UnicodeEncodeError("utf-8", CANARY, 0, 1, CANARY),
    ]  # fmt: skip
    with watched(log, tmp_path) as watch:
        for failure in failures:
            for sender in (watch.api.sender, watch.api.audit):
                sender.failures = [failure()]
                watch.call("POST", "/v1/messages", json=body, headers={"idempotency-key": "k"})
                sender.failures = []
        watch.api.idempotency.down = True
        watch.call("POST", "/v1/messages", json=body, headers={"idempotency-key": CANARY})
        assert watch.call("POST", "/v1/messages", json=body).status_code == 202  # what was given is taken as it is


def test_no_query_leaves_the_api(log: io.StringIO, tmp_path) -> None:
    names = ("access_token", "token", *sorted(parameters("query") - NAMES))
    with watched(log, tmp_path) as watch:
        for method, route, _ in QUICK_ROUTES:
            for name in names:
                watch.call(method, route, params={name: CANARY})
                watch.call(method, route, params={name: CANARY}, headers=bearer("wrong"))
        for path in ("/livez", "/nothing"):
            watch.call("DELETE", path, params={"token": CANARY})


POLICY = """
name: reminders
match: {topics: [reminders], headers: {tenant: gold}}
delay: {default: 15m, max: 400d}
target: {allow: [mail, push]}
---
name: orders-retry
match: {topics: [orders-retry]}
retry: {attempts: 5, backoff: {kind: exponential, initial: 1s, max: 10m}}
"""


ODD_YAML = (
    "{}: x", "'{}", '"{}', "[{}", "*{}", "[*{}]", "!{} x", "!{}!x y", "@{}", "%{}", "`{}", "\x01{}", "{}\n b: x",
    "!!int {}", "!!float {}", "!!timestamp {}", "!!bool {}", "!!binary {}", "{{<<: {}}}",
)  # fmt: skip


def test_no_text_of_a_policies_file_is_in_an_error() -> None:
    refused = 0
    documents = list(yaml.safe_load_all(POLICY))
    for document in documents:
        for place in leaves(document):
            for mark in (*MARKS[:3], f"{CANARY} {CANARY}", f"{CANARY}\n{CANARY}"):
                if "name" in place or "headers" in place:
                    continue
                refused += is_refused_in_silence(yaml.safe_dump(marked(document, place, mark)))
    for odd in ODD_YAML:
        refused += is_refused_in_silence(POLICY + "---\na: " + odd.format(CANARY))
    assert refused > 45


def is_refused_in_silence(text: str) -> bool:
    try:
        parse_policies(text, "policies.yaml")
    except PolicyFileError as error:
        said = f"{error!r} {error}"
    else:
        return False
    assert not seen_in(said), text
    return True


SECRETS = {
    "TICKOVER_REDIS__PASSWORD": CANARY,
    "TICKOVER_REDIS__KEY_PASSWORD": CANARY,
    "TICKOVER_KAFKA__CLIENT__SASL_PASSWORD": CANARY,
    "TICKOVER_KAFKA__CLIENT__SSL_KEY_PASSWORD": CANARY,
    "TICKOVER_KAFKA__CLIENT__SSL_KEY_PEM": CANARY,
    "TICKOVER_KAFKA__CLIENT__SASL_OAUTHBEARER_CLIENT_SECRET": CANARY,
    "TICKOVER_KAFKA__CLIENT__SASL_OAUTHBEARER_CONFIG": f"secret={CANARY}",
}
REDIS_URLS = (
    f"redis://:{CANARY}@redis:6379/0", f"rediss://user:{CANARY}@redis", f"redis://user:{CANARY}@redis:x",
    f"redis://user:{CANARY}@[redis", f"http://user:{CANARY}@redis", f"redis://user:{CANARY}@", f"redis+cluster://{CANARY}@h:0",
    f"redis://user:{CANARY}/@redis", f"redis://user:{CANARY}#@redis", f"rediss://redis?ssl_password={CANARY}",
)  # fmt: skip
WRONG: tuple[dict[str, str], ...] = (
    {},
    {"TICKOVER_HORIZON": "x"},
    {"TICKOVER_REDIS__REBUILD_RATE": "x"},
    {"TICKOVER_KAFKA__BOOTSTRAP_SERVERS": ""},
)


MISPLACED = {
    "TICKOVER_API__OIDC__ISSUER": f"https://user:{CANARY}@login.example",
    "TICKOVER_API__OIDC__JWKS_URL": f"ftp://user:{CANARY}@login.example/keys",
    "TICKOVER_LEDGER__PARTITIONS": f"https://user:{CANARY}@login.example/keys",
}


@pytest.mark.parametrize("given", [SECRETS, MISPLACED, *({"TICKOVER_REDIS__URL": url} for url in REDIS_URLS)], ids=str)
def test_no_secret_of_the_settings_is_shown(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for wrong in WRONG:
        for name, value in wrong.items():
            monkeypatch.setenv(name, value)
        try:
            settings = load_settings(None, {}, os.environ)
            said = f"{settings!r} {settings} {settings.model_dump_json()}"
        except ConfigError as error:
            said = f"{error!r} {error} {error.problems}"
        assert not seen_in(said)
        for words in (
            ["config", "show"],
            ["config", "show", "-o", "json"],
            ["acl", "print"],
            ["acl", "print", "--principal", "User:x"],
            ["policies", "list", "--url", "http://127.0.0.1:1"],
        ):
            result = CliRunner().invoke(app, words, prog_name="tickover")
            assert not seen_in(result.output + result.stderr + repr(result.exception)), words
        for name in wrong:
            monkeypatch.delenv(name)


@pytest.mark.parametrize("odd", [*ODD_YAML, "[{}]", "{{a: {}}}", "a\n  password: {}"])
def test_no_secret_of_a_broken_file_is_shown(odd: str, tmp_path) -> None:
    (tmp_path / "tickover.yaml").write_text("redis:\n  password: " + odd.format(CANARY))
    with pytest.raises(ConfigError) as raised:
        load_settings(tmp_path / "tickover.yaml")
    assert not seen_in(f"{raised.value!r} {raised.value}")
    assert "tickover.yaml" in str(raised.value)


def test_no_secret_of_the_clients_is_shown(log: io.StringIO) -> None:
    """Redis and Kafka that nobody answers at, or that refuse the settings, with everything they log."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # bound, and closed at once: nobody answers there
    said = []
    login = {"username": "user", "password": CANARY}
    for url in (f"redis://127.0.0.1:{port}", f"redis+cluster://127.0.0.1:{port}"):
        with pytest.raises(OverflowUnavailable) as away, closing(open_overflow(url, "g", login)) as overflow:
            inspect(overflow.client)
        said.append("".join(traceback.format_exception(away.value)))
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": CANARY}
    kafka = {"bootstrap.servers": f"127.0.0.1:{port}", "sasl.mechanism": "PLAIN", **sasl}
    logging_too: dict[str, Any] = {**kafka, "logger": client_log, "debug": "security,broker"}
    client = AdminClient(logging_too)
    with pytest.raises(KafkaException) as unreachable:
        client.list_topics(timeout=0.5)

    def is_logged() -> bool:
        client.poll(0)  # hands over what it has logged
        return "Connection refused" in log.getvalue()

    wait_until(is_logged)
    said.append("".join(traceback.format_exception(unreachable.value)))
    for bad in ({"sasl.mechanism": "NONE"}, {"ssl.key.pem": CANARY, "security.protocol": "SSL"}):
        with pytest.raises(KafkaException) as refused:
            AdminClient({**kafka, **bad})
        said.append(str(refused.value))
    assert not seen_in("\n".join(said))
    assert not seen_in(log.getvalue())


def test_no_token_and_payload_of_the_command_line_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    def refusing(request: httpx.Request) -> httpx.Response:
        assert CANARY in request.headers["authorization"]
        return httpx.Response(401, json={"detail": "no"})

    monkeypatch.setenv("TICKOVER_TOKEN", CANARY)
    (tmp_path / "value").write_text(CANARY)
    send = ["messages", "send", "--target", "push", "--key", CANARY, "--value", CANARY, "--header", f"h={CANARY}"]
    for words in (["policies", "list"], send, ["messages", "get", "x"], ["policies", "delete", "x"]):
        for transport in (httpx.MockTransport(refusing), None):
            result = CliRunner().invoke(
                app, [*words, "--url", "http://127.0.0.1:1"], obj=transport, prog_name="tickover"
            )
            assert result.exit_code == 1
            assert not seen_in(result.output + result.stderr + repr(result.exception)), words
