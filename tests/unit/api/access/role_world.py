"""An API full of secrets, and every call of it in every role: who is let in, what of the secrets each sees, and what is
recorded. The calls are compared with the routes of the application (`test_api_roles`), so that none is left out.
"""

import base64
import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from api.access.auth import Role, Tokens, load_tokens
from api.app import PARTS
from policies.headers import ERROR_CLASS, ERROR_MESSAGE, ID, TARGET
from sidecar.ledger.block import Entries
from sidecar.lookup.query import row_of
from sidecar.lookup.receipt import LedgerPlace
from sidecar.model.condition import Pausable, Pause, PauseKind
from sidecar.model.record import Headers, Outcome, TopicPartition
from sidecar.model.stats import TargetFlow
from sidecar.operations.bulk.changes import Wanted
from sidecar.operations.bulk.plan import Selection, When
from sidecar.operations.jobs.job import State
from tests.unit.api_world import NOW_MS, REMINDERS, RETRY, World, world
from tests.unit.change_world import held
from tests.unit.letter_world import dead
from tests.unit.lookup.test_receipts import block, settled
from tests.unit.schedule_world import schedule

# What somebody gave us and may not want to be seen, by kind: each mark stands wherever such a thing may be.
MARKS: Final = {
    "key": "mark-of-key",
    "value": "mark-of-value",
    "header name": "mark-of-name",
    "header value": "mark-of-header",
    "key prefix": "mark-of-prefix",
    "error text": "mark-of-failure",
    "address in an error": "mark-of-host.internal",
    "idempotency key": "mark-of-idempotency",
    "token": "mark-of-token",
}
LANE: Final = TopicPartition("reminders", 3)
OFFSET: Final = 8  # of the held message
CONTROL: Final = 0  # the offset that Kafka gives to the first control record
HEADERS: Final[Headers] = [(MARKS["header name"], MARKS["header value"].encode())]
CONTENT: Final[dict[str, Any]] = {
    "key": MARKS["key"],
    "value": MARKS["value"],
    "headers": [[MARKS["header name"], MARKS["header value"]]],
}
EDIT: Final[dict[str, Any]] = {
    "merge": {MARKS["value"]: MARKS["value"]},
    "key": MARKS["key"],
    "headers": {MARKS["header name"]: MARKS["header value"]},
}
ASKED: Final = {**CONTENT, "headers": [*CONTENT["headers"], ["tickover-target", "push"], ["tickover-delay", "90s"]]}
SEARCH: Final = {
    "error": MARKS["error text"],
    "key_prefix": MARKS["key prefix"],
    "header": f"{MARKS['header name']}={MARKS['header value']}",
}
ERROR: Final = f"{MARKS['error text']}: {MARKS['address in an error']}:5432 does not answer"
WAIT_S: Final = 60.0
DATA = "data:"  # a line of a stream

Given = dict[str, str]
Prepare = Callable[[World], Given]


def seen_in(text: str) -> frozenset[str]:
    """The kinds of secrets that stand in a text, as they are, in base64 or in hexadecimal."""
    lowered = text.lower()

    def stands(mark: str) -> bool:
        inner = base64.b64encode(mark.encode()).decode().rstrip("=")[:-1].lower()
        return any(form in lowered for form in (mark, inner, mark.encode().hex()))

    return frozenset(kind for kind, mark in MARKS.items() if stands(mark))


# --- what the world holds -----------------------------------------------------------------------------------------


def token_of(role: Role) -> str:
    return f"{MARKS['token']}-{role.name}"


def tokens(directory: str) -> Tokens:
    """A file in the directory with a token of each role."""
    hashes = {role.name.lower(): hashlib.sha256(token_of(role).encode()).hexdigest() for role in Role}
    path = Path(directory, "tokens.json")
    path.write_text(
        json.dumps([{"name": name, "role": name, "hash": f"sha256:{hash}"} for name, hash in hashes.items()])
    )
    return load_tokens(path)


@contextmanager
def full_world(**options: Any) -> Iterator[World]:
    """One message that is held, one that bulk changes mean, letters, a schedule, all with every secret.

    `options` are fields of the world.
    """
    with tempfile.TemporaryDirectory() as directory, world(tokens=tokens(directory), **options) as api:
        api.add(REMINDERS)
        api.add(RETRY)
        api.sender.topics["push"] = 1
        trailer = [(ID, b"a"), (ERROR_CLASS, b"Refused"), (ERROR_MESSAGE, ERROR.encode())]
        secrets: dict[str, Any] = {"key": MARKS["key"].encode(), "value": MARKS["value"].encode(), "headers": HEADERS}
        one = held(OFFSET, NOW_MS + 60_000, trailer=trailer, **secrets)
        api.held.rows = [row_of(LANE, one, "wheel")]
        api.receipts.note_trouble("")
        group = api.changing.group
        group.lanes, group.next = {LANE: {}}, {LANE: 0}
        more = {**secrets, "key": MARKS["key prefix"].encode() + b"-and-more"}
        group.accept(LANE, NOW_MS + 60_000, "b", target="push", policy="reminders@1", **more)
        letter = [*dead(error_class="Refused", error_message=ERROR), *HEADERS]
        for _ in range(2):
            api.letters.add("orders-dlq", letter, key=secrets["key"], value=secrets["value"])
        api.letters.add("orders", [])
        for _ in range(OFFSET + 1):
            api.letters.add(
                LANE.topic, [(ID, b"a"), *HEADERS], partition=LANE.partition, key=secrets["key"], value=secrets["value"]
            )
        aside = [*dead("no_policy", source="reminders/3/7", detail="none matches"), *HEADERS, (TARGET, b"push")]
        api.letters.add("tickover.quarantine", aside, key=secrets["key"], value=secrets["value"])
        given = schedule(name="tick", cron="0 9 * * *", target="push", **CONTENT)
        api.schedules.store.put(given, "reminders", 0, "me")
        api.pauses.store.put(Pausable(PauseKind.TARGET, "push"), Pause("a release", "me", NOW_MS))
        yield api


def wait_for(true: Callable[[], bool]) -> None:
    """The legs of changes are threads."""
    waiting = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if true():
            return
        waiting.wait(0.01)
    raise AssertionError("it has not come so far")


def change(api: World) -> Given:
    """A change that was planned."""
    selection = Selection(topic=LANE.topic, key_prefix=MARKS["key prefix"])
    changes = api.changing.changes
    id = changes.plan(Wanted("cancel", selection, When(), 0, False, "me")).plan.id
    wait_for(lambda: changes.get(id).state is State.PLANNED and not changes.crew.works_on(id))
    return {"id": id, "token": changes.get(id).token or ""}


def done_change(api: World) -> Given:
    """A change that was run, so that there are receipts."""
    given, changes = change(api), api.changing.changes
    changes.run(given["id"], given["token"])
    wait_for(lambda: changes.get(given["id"]).state is State.DONE and not changes.crew.works_on(given["id"]))
    return given


def redrive(api: World) -> Given:
    """A redrive that was planned."""
    api.redriving.ending = {"state": State.DONE}
    body = {"topic": "orders-dlq", "filter": SEARCH, "edit": EDIT}
    bearer = {"authorization": f"Bearer {token_of(Role.WRITE)}"}
    id = api.call("POST", "/v1/redrives", json=body, headers=bearer).json()["id"]
    wait_for(lambda: not api.redriving.redrives.crew.works_on(id))
    return {"id": id}


def broken(api: World) -> Given:
    """A target whose breaker is open."""
    api.change_stats(targets={"push": TargetFlow(1, 0.0, "open")})
    return {"name": "push"}


def redrive_of_another(api: World) -> Given:
    """A redrive that was planned by somebody who has no token here."""
    given, plans = redrive(api), api.redriving.plans
    one = plans.redrives[given["id"]]
    plans.redrives[given["id"]] = one.model_copy(update={"plan": one.plan.model_copy(update={"author": "me"})})
    return given


def obeyed(rows: dict[int, Outcome], related: dict[int, int], moved: bool = False) -> Prepare:
    """The ledger says what becomes of the control record that comes."""

    def prepare(api: World) -> Given:
        told = settled(rows, {} if moved else dict.fromkeys(rows, "a"))._replace(related=related)
        one = ([CONTROL], [90_000], ["p@1"], ["mail"], [-1], [0], [-1], [-1], [""], {CONTROL: "a"}, {CONTROL: OFFSET})
        carried: dict[str, Any] = {"carried": Entries(*one)} if moved else {}
        api.receipts.add(LedgerPlace(1, 7), block({}, settled=told, **carried))
        return {"id": "a"}

    return prepare


def nothing(api: World) -> Given:
    return {}


# --- every call ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One way to call a route: what goes into its path, query, headers and body, after which preparation."""

    given: Given = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    prepare: Prepare = nothing


ANY_VERSION: Final = {"if-match": "*"}
PAYLOAD: Final = {"payload": "true"}
TICK: Final = {"name": "tick"}
POLICY: Final = {"name": "reminders"}
LETTER: Final = {"topic": "orders-dlq", "partition": "0", "offset": "0"}
ASIDE: Final = {"partition": "0", "offset": "0"}
CALLS: Final[Mapping[str, tuple[Call, ...]]] = {
    "GET /": (Call(),),
    "GET /docs": (Call(),),
    "GET /docs/redoc.js": (Call(),),
    "GET /livez": (Call(),),
    "GET /metrics": (Call(),),
    "GET /openapi.json": (Call(),),
    "GET /problems/{name}": (Call({"name": "file-managed"}),),
    "GET /readyz": (Call(),),
    "GET /v1/audit": (Call(prepare=change),),
    "GET /v1/capacity": (Call(),),
    "GET /v1/changes": (Call(prepare=change),),
    "POST /v1/changes": (
        Call(body={"action": "cancel", "filter": {"topic": LANE.topic, "key_prefix": MARKS["key prefix"]}}),
    ),
    "GET /v1/changes/{id}": (Call(prepare=change), Call(prepare=change, query=PAYLOAD)),
    "POST /v1/changes/{id}/abort": (Call(prepare=change),),
    "POST /v1/changes/{id}/approve": (Call(prepare=change),),
    "GET /v1/changes/{id}/receipts": (Call(prepare=done_change),),
    "POST /v1/changes/{id}/run": (Call(prepare=change, body={"token": "{token}"}),),
    "GET /v1/dead-letters": (
        Call(),
        Call(query=PAYLOAD),
        Call(query={"key_prefix": MARKS["key"]}),
        Call(query={"header": f"{MARKS['header name']}={MARKS['header value']}"}),
        Call(query={"error": MARKS["address in an error"]}),
    ),
    "GET /v1/dead-letters/groups": (
        Call(),
        Call(query=PAYLOAD),
        Call(query={"key_prefix": MARKS["key"]}),
        Call(query={"header": f"{MARKS['header name']}={MARKS['header value']}"}),
    ),
    "PUT /v1/dead-letters/{topic}/groups/{fingerprint}": (
        Call({"topic": "orders-dlq", "fingerprint": "0" * 16}, body={"state": "known"}),
    ),
    "GET /v1/dead-letters/{topic}/{partition}/{offset}": (Call(LETTER), Call(LETTER, query=PAYLOAD)),
    "GET /v1/doctor": (Call(),),
    "GET /v1/events": (Call(query={"follow": "false"}),),
    "GET /v1/forecast": (Call(),),
    "GET /v1/lateness": (Call(query={"id": "a"}),),
    "GET /v1/messages": (
        Call(),
        Call(query={"key_prefix": MARKS["key prefix"]}),
        Call(query={"header": f"{MARKS['header name']}={MARKS['header value']}"}),
    ),
    "POST /v1/messages": (
        Call(body={"target": "push", **CONTENT}, headers={"idempotency-key": MARKS["idempotency key"]}),
    ),
    "POST /v1/messages:batch": (
        Call(
            body={"messages": [{"target": "push", **CONTENT}, {"target": "nowhere", **CONTENT}]},
            headers={"idempotency-key": MARKS["idempotency key"]},
        ),
    ),
    "GET /v1/messages/{id}": (Call({"id": "a"}), Call({"id": "a"}, query=PAYLOAD)),
    "DELETE /v1/messages/{id}": (Call(prepare=obeyed({CONTROL: Outcome.APPLIED}, {CONTROL: OFFSET})),),
    "PATCH /v1/messages/{id}": (
        Call(body={"delay": "2h"}, prepare=obeyed({OFFSET: Outcome.MOVED}, {OFFSET: CONTROL}, moved=True)),
    ),
    "POST /v1/messages/{id}/fire": (Call(prepare=obeyed({CONTROL: Outcome.EMITTED}, {CONTROL: OFFSET})),),
    "GET /v1/overview": (Call(),),
    "GET /v1/pauses": (Call(),),
    "DELETE /v1/pauses/{kind}/{name}": (Call({"kind": "target", "name": "push"}),),
    "PUT /v1/pauses/{kind}/{name}": (Call({"kind": "schedule", "name": "tick"}, body={"reason": "a release"}),),
    "GET /v1/policies": (Call(),),
    "POST /v1/policies/explain": (Call(body={"record": {"topic": "reminders", "partition": 0, **ASKED}}),),
    "DELETE /v1/policies/{name}": (Call(POLICY, headers=ANY_VERSION),),
    "GET /v1/policies/{name}": (Call(POLICY),),
    "PUT /v1/policies/{name}": (Call(POLICY, headers=ANY_VERSION, body=REMINDERS),),
    "POST /v1/policies/{name}/rollback": (Call(POLICY, headers=ANY_VERSION, body={"version": 1}),),
    "GET /v1/policies/{name}/versions": (Call(POLICY),),
    "GET /v1/quarantine": (Call(), Call(query=PAYLOAD)),
    "GET /v1/quarantine/{partition}/{offset}": (Call(ASIDE), Call(ASIDE, query=PAYLOAD)),
    "POST /v1/quarantine/{partition}/{offset}/send": (Call(ASIDE, body={"headers": {"tickover-delay": "10m"}}),),
    "GET /v1/redrives": (Call(prepare=redrive),),
    "POST /v1/redrives": (
        Call(body={"topic": "orders-dlq", "filter": SEARCH}),
        Call(body={"topic": "orders-dlq", "letters": ["orders-dlq/0/0"], "edit": EDIT}),
        Call(body={"topic": "orders-dlq", "letters": ["orders-dlq/0/0"], "action": "discard"}),
    ),
    "GET /v1/redrives/{id}": (Call(prepare=redrive), Call(prepare=redrive, query=PAYLOAD)),
    "POST /v1/redrives/{id}/abort": (Call(prepare=redrive),),
    "POST /v1/redrives/{id}/approve": (Call(prepare=redrive_of_another),),
    "POST /v1/redrives/{id}/canary": (Call(prepare=redrive, body={"count": 1}),),
    "POST /v1/redrives/{id}/run": (Call(prepare=redrive),),
    "GET /v1/replicas": (Call(),),
    "GET /v1/schedules": (Call(), Call(query=PAYLOAD)),
    "DELETE /v1/schedules/{name}": (Call(TICK, headers=ANY_VERSION),),
    "GET /v1/schedules/{name}": (Call(TICK), Call(TICK, query=PAYLOAD)),
    "PUT /v1/schedules/{name}": (
        Call(TICK, headers=ANY_VERSION, body={"cron": "1 9 * * *", "target": "push", **CONTENT}),
    ),
    "GET /v1/schedules/{name}/next": (Call(TICK),),
    "GET /v1/schedules/{name}/runs": (Call(TICK),),
    "POST /v1/schedules/{name}/run": (Call(TICK, headers={"idempotency-key": MARKS["idempotency key"]}),),
    "POST /v1/schedules/{name}/rewind": (Call(TICK, headers=ANY_VERSION, body={"to": 100_000_000_000}),),
    "GET /v1/schemas/policy": (Call(),),
    "GET /v1/settings": (Call(),),
    "GET /v1/stats": (Call(),),
    "GET /v1/whoami": (Call(),),
    "GET /v1/targets": (Call(),),
    "POST /v1/targets/{name}/close-breaker": (Call(prepare=broken),),
    "POST /v1/targets/{name}/open-breaker": (Call(prepare=broken),),
}


def routes() -> list[str]:
    """The calls that the application answers, by method and path."""
    return sorted(
        f"{method} {getattr(route, 'path', '').replace(':path', '')}"
        for part in PARTS
        for route in part.router.routes
        for method in getattr(route, "methods", ())
    )


class Told(NamedTuple):
    """Answer to a caller: its status, its headers and body, and the audit records that the call left behind."""

    status: int
    headers: str
    body: str
    audited: str

    @property
    def document(self) -> Any:
        """The answer as JSON, of a stream the data of its events; None where it has no body."""
        body = self.body
        if "text/event-stream" in self.headers:
            return [json.loads(line[len(DATA) :]) for line in body.splitlines() if line.startswith(DATA)]
        return json.loads(body) if body else None

    @property
    def answer(self) -> str:
        """All of it."""
        return f"{self.headers} {self.body}"

    @property
    def seen(self) -> frozenset[str]:
        """The kinds of secrets in the answer."""
        return seen_in(self.answer)


def ask(name: str, call: Call, role: Role | None) -> Told:
    """Call it in a world of its own, as somebody with this role, or without a token."""
    with full_world() as api:
        given = {**call.given, **call.prepare(api)}
        before = len(api.audit.sent)
        method, path = name.split(" ")
        headers = dict(call.headers) | ({} if role is None else {"authorization": f"Bearer {token_of(role)}"})
        body = {**call.body, "token": given["token"]} if "token" in (call.body or {}) else call.body
        options: dict[str, Any] = {} if body is None else {"json": body}
        response = api.call(method, path.format(**given), params=dict(call.query), headers=headers, **options)
        api.changing.changes.crew.stop()
        api.redriving.redrives.crew.stop()
        audited = "\n".join(str((one.key, one.value, one.headers)) for one in api.audit.sent[before:])
        return Told(response.status_code, str(response.headers), response.text, audited)
