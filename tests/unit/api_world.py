"""An API over fakes: policies by the real rule of the policy topic, Kafka and Redis in memory."""

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

import httpx
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012
from starlette.routing import Match

from api.access.auth import Tokens
from api.access.gate import Gate
from api.app import create_app
from api.console.page import ConsoleOptions
from api.lookup import LookUp
from api.openapi.description import HEADERS
from api.ports import (
    Acknowledged,
    Answered,
    Busy,
    Fresh,
    IdempotencyUnavailable,
    Limits,
    Mismatch,
    Outgoing,
    Ports,
)
from api.sources import SourceSender
from policies.errors import FileManaged, PolicyConflict, PolicyStoreUnavailable
from policies.model import ManagedBy, Policy, Removed, Versioned
from policies.table import PolicyTable
from policies.topic.log import Change, PolicyLog, encode_change
from sidecar.conditions.attribution import Recorded, Span
from sidecar.doctor.about import About
from sidecar.doctor.facts import Finding, Severity
from sidecar.lookup.query import Key, LookUpUnavailable, Query, key_of_row
from sidecar.lookup.receipts import Receipts
from sidecar.model.condition import Subject
from sidecar.model.record import Place, TopicPartition
from sidecar.model.stats import Left, Stats
from sidecar.operations.dead_letters.browse import Limits as ScanLimits
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.masking import Masking
from sidecar.operations.dead_letters.reading import Reading, Rules
from sidecar.operations.dead_letters.resending import Resending
from sidecar.operations.jobs.job import Approval
from sidecar.operations.jobs.transactional_sender import Sendable
from sidecar.service.metrics import Exposition, Recorder
from sidecar.settings.settings import Settings
from tests.source import ROOT
from tests.unit.change_world import MemoryChanges
from tests.unit.letter_world import MemoryLetterLog, MemoryRedriven, MemoryShipping
from tests.unit.pause_world import MemoryPauses
from tests.unit.place_rule import unplaced
from tests.unit.redrive_world import GOVERNOR, MemoryRedrives
from tests.unit.report_world import MemoryOverview
from tests.unit.schedule_world import LIMITS, MemorySchedules

NOW_MS = 1_800_000_000_000
LETTER_RULES = Rules(("*-dlq",), "tickover.quarantine", ScanLimits(1_000, 60.0), Masking(("*secret*",)))
BASE_URL = "http://127.0.0.1:8230"
FINDING = Finding(Severity.WARNING, "audit", "tickover.g.audit keeps records for an hour", "kafka-configs.sh ...")
UNFORESEEN = (405, 408, 500)  # of the router and the server


class MemoryPolicies:
    """The policy topic's rule without a topic."""

    def __init__(self) -> None:
        self.log = PolicyLog()
        self.reason = ""
        self.lost_race: Callable[[], None] = lambda: None
        self._numbers = itertools.count()

    @property
    def healthy(self) -> bool:
        return not self.reason

    @property
    def table(self) -> PolicyTable:
        return self.log.table

    def put(self, policy: Policy, expected_version: int, author: str, managed_by: ManagedBy = "api") -> Versioned:
        entry = self._apply(policy.name, policy, expected_version, author, managed_by)
        assert isinstance(entry, Versioned)
        return entry

    def delete(self, name: str, expected_version: int, author: str, managed_by: ManagedBy = "api") -> Removed:
        entry = self._apply(name, None, expected_version, author, managed_by)
        assert isinstance(entry, Removed)
        return entry

    def versions(self, name: str) -> tuple[Versioned | Removed, ...]:
        return self.log.versions(name)

    def _apply(
        self, name: str, policy: Policy | None, expected: int, author: str, managed_by: ManagedBy
    ) -> Versioned | Removed:
        self.lost_race()
        if self.reason:
            raise PolicyStoreUnavailable(self.reason)
        current = self.table.policies.get(name)
        if current is not None and current.managed_by == "file" and managed_by != "file":
            raise FileManaged(name)
        change = Change(write="w", name=name, expected=expected, author=author, managed_by=managed_by, policy=policy)
        verdict = self.log.apply(next(self._numbers), encode_change(change), NOW_MS)
        assert verdict is not None
        if verdict.won is None:
            raise PolicyConflict(name, expected, verdict.current_version)
        return verdict.won


class MemorySender:
    """Topics with partition counts; keeps what it is given."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.topics = topics
        self.sent: list[Outgoing] = []
        self.failures: list[Exception] = []

    async def send(self, record: Outgoing) -> Acknowledged:
        if self.failures:
            raise self.failures.pop()
        for name, _ in record.headers:
            name.encode()  # librdkafka's client would crash
        self.sent.append(record)
        return Acknowledged(record.topic, record.partition, len(self.sent) - 1, record.timestamp_ms)

    async def partition_count(self, topic: str) -> int | None:
        return self.topics.get(topic)


class MemorySources:
    """Sources in memory: every topic is consumed, but for those that are `not_consumed`."""

    topics: Collection[str] = ()
    reserved = Settings(group="g").reserved_topics

    def __init__(self) -> None:
        self.not_consumed: set[str] = set()
        self.holding: dict[str, Left] = {}  # what is held of each topic
        self.down = ""

    def is_source(self, topic: str) -> bool:
        if self.down:
            raise LookUpUnavailable(self.down)
        return topic not in self.not_consumed

    def would_leave(self, policies: Sequence[Policy]) -> dict[str, Left]:
        if self.down:
            raise LookUpUnavailable(self.down)
        matched = {topic for policy in policies for topic in policy.match.topics}
        return {topic: left for topic, left in self.holding.items() if topic not in matched}


class MemoryIdempotency:
    """The script of `api.idempotency`, in Python."""

    def __init__(self) -> None:
        self.down = False
        self.kept: dict[str, dict[str, Any]] = {}

    async def begin(self, key: str, fingerprint: bytes, now_ms: int) -> Fresh | Answered | Busy | Mismatch:
        self._check()
        had = self.kept.setdefault(key, {"fingerprint": fingerprint, "ms": now_ms, "busy": False, "response": None})
        if had["fingerprint"] != fingerprint:
            return Mismatch()
        if had["response"] is not None:
            return Answered(had["response"])
        if had["busy"]:
            return Busy()
        had["busy"] = True
        had["holder"] = str(len(self.kept))
        return Fresh(had["ms"], had["holder"])

    async def finish(self, key: str, holder: str, response: bytes) -> None:
        self._check()
        if self.kept[key]["holder"] == holder:
            self.kept[key]["response"] = response

    async def release(self, key: str, holder: str) -> None:
        self._check()
        if self.kept[key]["holder"] == holder:
            self.kept[key]["busy"] = False

    async def forget(self, key: str, holder: str) -> None:
        self._check()
        if self.kept[key]["holder"] == holder and self.kept[key]["response"] is None:
            del self.kept[key]

    def _check(self) -> None:
        if self.down:
            raise IdempotencyUnavailable("down")


class MemoryHeld:
    """Records that all replicas hold, as rows, in the real order."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.minutes: dict[int, int] = {}
        self.missing: list[TopicPartition] = []
        self.unread: list[TopicPartition] = []  # they have records that nobody has read
        self.asked: list[Query] = []
        self.down = ""

    def page(
        self, query: Query, after: Key, limit: int
    ) -> tuple[list[dict[str, Any]], Key | None, list[TopicPartition]]:
        self._note(query)
        rows = [row for row in sorted(self.rows, key=key_of_row) if key_of_row(row) > after]
        return rows[:limit], key_of_row(rows[limit - 1]) if len(rows) > limit else None, self.missing

    def find(self, id: str, query: Query) -> tuple[list[dict[str, Any]], list[TopicPartition]]:
        self._note(query)
        lanes = [(row, TopicPartition(row["source"], row["position"]["partition"])) for row in self.rows]
        return [row for row, lane in lanes if row["id"] == id and query.wants_lane(lane)], self.missing

    def find_to_end(self, id: str, query: Query) -> tuple[list[dict[str, Any]], list[TopicPartition]]:
        rows, missing = self.find(id, query)
        return rows, missing if rows else sorted({*missing, *self.unread})

    def forecast(self, query: Query, until_ms: int) -> tuple[dict[int, int], list[TopicPartition]]:
        self._note(query)
        return self.minutes, self.missing

    def _note(self, query: Query) -> None:
        if self.down:
            raise LookUpUnavailable(self.down)
        self.asked.append(query)


class MemoryConditions:
    """Conditions that all replicas have recorded."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.now_ms = NOW_MS
        self.problem = ""
        self.asked_in = threading.current_thread()

    def recorded(self, since_ms: int, subjects: Collection[Subject]) -> Recorded:
        self.asked_in = threading.current_thread()
        return Recorded([one for one in self.spans if one.subject in subjects], self.now_ms, self.problem)


@dataclass
class World:
    """One API and everything behind it."""

    policies: MemoryPolicies = field(default_factory=MemoryPolicies)
    sender: MemorySender = field(default_factory=lambda: MemorySender({"reminders": 12, "gold": 3}))
    audit: MemorySender = field(default_factory=lambda: MemorySender({"tickover.audit": 1}))
    letters: MemoryLetterLog = field(default_factory=MemoryLetterLog)
    redriven: MemoryRedriven = field(default_factory=MemoryRedriven)
    idempotency: MemoryIdempotency = field(default_factory=MemoryIdempotency)
    stats: Stats = field(default_factory=lambda: Stats(joined=True, turned_monotonic_s=100.0))
    receipts: Receipts = field(default_factory=lambda: Receipts(1 << 20))
    held: "MemoryHeld" = field(default_factory=MemoryHeld)
    conditions: MemoryConditions = field(default_factory=MemoryConditions)
    monotonic_s: float = 100.0
    now_ms: int = NOW_MS
    tokens: Tokens | None = None
    gate: Gate | None = None
    limits: Limits = field(default_factory=Limits)
    path: str = ""
    console: ConsoleOptions | None = None
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    schedules: MemorySchedules = field(default_factory=MemorySchedules)
    pauses: MemoryPauses = field(default_factory=MemoryPauses)
    recorder: Recorder = field(default_factory=Recorder)
    sources: MemorySources = field(default_factory=MemorySources)
    findings: list[Finding] = field(default_factory=lambda: [FINDING])
    group: MemoryOverview = field(default_factory=MemoryOverview)
    approval: Approval = "none"
    client_headers: dict[str, str] = field(default_factory=lambda: {"Tickover-Client": "tests"})

    def __post_init__(self) -> None:
        self.pauses.now_ms = self.now_ms
        self.redriving = MemoryRedrives(self.letters, self.approval)
        self.changing = MemoryChanges(lambda: self.policies.table, approval=self.approval)
        self.resent: list[Sendable] = []
        self.resend_failures: list[Exception] = []
        self.shippings: dict[str, MemoryShipping] = {}  # by plan
        self.resending = Resending(self._ship, self.redriven, self.redriving.redrives.all, lambda: self.now_ms)
        self.about = About(Settings(group="g"), lambda _: self.findings, lambda: self.monotonic_s, lambda: self.now_ms)
        self.app: FastAPI = create_app(
            Ports(
                policies=self.policies,
                stats=lambda: self.stats,
                sender=SourceSender(self.sender, self.sources.reserved),
                audit_sender=self.audit,
                audit_topic="tickover.audit",
                redrives=self.redriving.redrives,
                governor=GOVERNOR,
                changes=self.changing.changes,
                change_rate=0,
                schedules=self.schedules.store,
                pauses=self.pauses.store,
                schedule_limits=LIMITS,
                letters=Reading(self.log, lambda: self.policies.table, LETTER_RULES, self.redriven),
                idempotency=self.idempotency,
                receipts=self.receipts,
                lookup=LookUp(self.held),
                conditions=self.conditions,
                metrics=Exposition(lambda: self.stats, lambda: self.policies.table, self.recorder),
                gate=self.gate or Gate(self.tokens),
                now_ms=lambda: self.now_ms,
                monotonic_s=lambda: self.monotonic_s,
                limits=self.limits,
                path=self.path,
                sources=self.sources,
                about=self.about,
                group=self.group,
                resending=self.resending,
            ),
            self.console,
        )

    def _ship(self, plan: str) -> MemoryShipping:
        self.shippings[plan] = MemoryShipping(self.redriven, self.resent, self.resend_failures)
        return self.shippings[plan]

    def log(self) -> MemoryLetterLog:
        """All topics that are read, the audit topic among them."""
        audited: list[DeadLetter | None] = [
            DeadLetter(Place(record.topic, 0, offset), record.timestamp_ms, None, record.value, [])
            for offset, record in enumerate(self.audit.sent)
        ]
        self.letters.partitions["tickover.audit", 0] = audited
        return self.letters

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            self.app.state.events.stop()  # this transport reads an answer to its end, which a stream has not
            transport = httpx.ASGITransport(self.app)
            headers = self.client_headers
            async with httpx.AsyncClient(transport=transport, base_url=BASE_URL, headers=headers) as client:
                return await client.request(method, path, **options)

        response = self.runner.run(request())
        refuse_undescribed(self, method, response)
        refuse_undescribed_headers(self, method, response)
        refuse_misshapen(self, method, response)
        refuse_unplaced(response)
        return response

    def send_raw(self, method: str, path: str, body: bytes, **headers: str) -> httpx.Response:
        headers.setdefault("content-type", "application/json")
        return self.call(method, path, content=body, headers=headers)

    def message(self, **body: Any) -> httpx.Response:
        return self.call("POST", "/v1/messages", json=body)

    def add(self, document: dict[str, Any], managed_by: ManagedBy = "api") -> None:
        policy = Policy.model_validate(document)
        current = self.policies.table.policies.get(policy.name)
        self.policies.put(policy, current.version if current else 0, "test", managed_by)

    @property
    def audited(self) -> list[dict[str, Any]]:
        """The records of the audit topic."""
        return [json.loads(record.value or b"") for record in self.audit.sent]

    def change_stats(self, **changes: Any) -> None:
        self.stats = replace(self.stats, **changes)


@cache
def refusals_described() -> dict[str, set[tuple[int, str]]]:
    """Status and type of the problems that the description has, by method and path."""
    return {
        f"{method.upper()} {path}": {
            (int(status), name)
            for status, answer in operation["responses"].items()
            if status.startswith(("4", "5"))
            for name in answer["content"]["application/problem+json"]["schema"]["properties"]["type"]["enum"]
        }
        for path, operations in World().app.openapi()["paths"].items()
        for method, operation in operations.items()
    }


@cache
def types_told() -> frozenset[str]:
    """Types of problems that have a page."""
    return frozenset(json.loads((ROOT / "api" / "problems.json").read_bytes()))


def refuse_undescribed(api: World, method: str, response: httpx.Response) -> None:
    """Fail when an operation answers with a problem that its description doesn't have."""
    if response.headers.get("content-type") != "application/problem+json" or method == "HEAD":
        return
    given = json.loads(response.content)
    assert given["type"].removeprefix("/problems/") in types_told(), given["type"]
    path = unquote(response.url.path).removeprefix(api.path)
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    for route in api.app.state.routes:
        described = refusals_described().get(f"{method} {route.path_format}")
        if route.matches(scope)[0] is Match.FULL:
            told = (response.status_code, given["type"])
            assert described is None or response.status_code in UNFORESEEN or told in described, (route.path, told)
            return


HEADERS_ASKED: Final = frozenset(name.lower() for name in HEADERS)


@cache
def headers_described() -> dict[str, dict[str, set[str]]]:
    """Headers of answers by status, by method and path."""
    return {
        f"{method.upper()} {path}": {
            status: {name.lower() for name in answer.get("headers", ())}
            for status, answer in operation["responses"].items()
        }
        for path, operations in World().app.openapi()["paths"].items()
        for method, operation in operations.items()
    }


def refuse_undescribed_headers(api: World, method: str, response: httpx.Response) -> None:
    """Fail when an operation's answer has a header of note that its description doesn't have."""
    path = unquote(response.url.path).removeprefix(api.path)
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    for route in api.app.state.routes:
        if route.matches(scope)[0] is Match.FULL:
            described = headers_described().get(f"{method} {route.path_format}")
            if described is not None:
                told = described.get(str(response.status_code), described["default"])
                undescribed = HEADERS_ASKED & response.headers.keys() - told
                assert not undescribed, (route.path, response.status_code, undescribed)
            return


@cache
def shapes() -> dict[str, Validator]:
    """Words of the description for the answers of 2xx, by method, path and status."""
    document = World().app.openapi()
    resolved = {"$id": "urn:api", "components": document["components"]}
    registry = Registry().with_resource("urn:api", Resource.from_contents(resolved, DRAFT202012))
    found = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                if status.startswith("2") and schema:
                    of_api = json.loads(json.dumps(schema).replace('"#/', '"urn:api#/'))
                    found[f"{method.upper()} {path} {status}"] = Draft202012Validator(of_api, registry=registry)
    return found


def refuse_misshapen(api: World, method: str, response: httpx.Response) -> None:
    """Fail when an operation's answer isn't as its description says."""
    if not response.is_success or method == "HEAD" or not response.content:
        return
    path = unquote(response.url.path).removeprefix(api.path)
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    for route in api.app.state.routes:
        if route.matches(scope)[0] is Match.FULL:
            shape = shapes().get(f"{method} {route.path_format} {response.status_code}")
            if shape is not None and response.headers["content-type"] == "application/json":
                faults = [f"{error.json_path}: {error.message[:200]}" for error in shape.iter_errors(response.json())]
                assert not faults, (route.path, faults)
            return


def refuse_unplaced(response: httpx.Response) -> None:
    """Fail when an answer has a place of a record without its text."""
    kind = response.headers.get("content-type", "")
    if "/v1/" in response.url.path and response.content and kind in ("application/json", "application/problem+json"):
        assert not (faults := list(unplaced(response.json()))), (response.url.path, faults)


REMINDERS: dict[str, Any] = {
    "name": "reminders",
    "match": {"topics": ["reminders"]},
    "delay": {"default": "15m", "max": "400d"},
    "target": {"allow": ["mail-*", "push"]},
}
RETRY: dict[str, Any] = {
    "name": "orders-retry",
    "match": {"topics": ["orders-retry"]},
    "retry": {"attempts": 5, "backoff": {"kind": "exponential", "initial": "1s", "max": "10m"}},
}


@contextmanager
def world(**parts: Any) -> Iterator[World]:
    with asyncio.Runner() as runner:
        yield World(runner=runner, **parts)


def problem(response: httpx.Response, status: int, type: str) -> dict[str, Any]:
    """Checks that it is a problem document of this kind."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = json.loads(response.content)
    assert document["type"] == f"/problems/{type}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert document["instance"].startswith("/")
    assert isinstance(document, dict)
    return document
