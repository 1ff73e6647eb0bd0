"""The API on a real Kafka and a real Redis: policies from the policy topic, records in a source topic."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import redis.exceptions

from api.access.gate import Gate
from api.app import create_app
from api.idempotency import LEASE_MS, RedisIdempotency
from api.lookup import LookUp
from api.ports import Answered, Busy, Fresh, Idempotency, IdempotencyUnavailable, Mismatch, Ports
from api.sender import KafkaSender
from api.serving.server import Server
from policies.topic.store import PolicyStore
from sidecar.doctor.about import About
from sidecar.kafka import client_settings
from sidecar.kafka.topic_follower import TopicReader
from sidecar.lookup.receipts import Receipts
from sidecar.model.stats import Stats
from sidecar.service.metrics import Exposition, Recorder
from sidecar.service.operations.bulk_changes import changes_of
from sidecar.service.operations.dead_letters import governor_of, reading_of, redriven_of, redrives_of, resending_of
from sidecar.service.operations.schedules import limits_of, schedule_store_of
from sidecar.settings.settings import Settings
from tests.services.kafka import Kafka
from tests.services.waiting import WAIT_S, wait_until
from tests.unit.api_world import MemoryConditions, MemoryHeld, MemoryIdempotency, MemorySources
from tests.unit.change_world import MemoryGroup
from tests.unit.pause_world import MemoryPauses
from tests.unit.report_world import MemoryOverview

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("patient_api")]

ANSWER_S = 90.0


@pytest.fixture(scope="module")
def redis_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Debian's redis-server on a Unix socket, with nothing on disk."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.fail("no redis-server here")
    path = tmp_path_factory.mktemp("redis") / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL, cwd=path.parent)
    try:
        wait_until(lambda: listens(path))
        yield path
    finally:
        process.terminate()
        process.wait(ANSWER_S)


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.fixture
def patient_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka that is slow to answer is a 503, and none of a test on a busy machine."""
    patient = {**client_settings.REST_SENDER, "message.timeout.ms": int(WAIT_S * 1_000)}
    monkeypatch.setattr(client_settings, "REST_SENDER", patient)
    monkeypatch.setattr("api.sender.METADATA_TIMEOUT_S", WAIT_S)
    monkeypatch.setattr("policies.topic.store.WRITE_TIMEOUT_S", WAIT_S)


@pytest.fixture
def client(redis_path: Path) -> Iterator[Any]:
    with redis.Redis(unix_socket_path=str(redis_path), socket_timeout=WAIT_S) as made:
        made.flushall()
        yield made


@dataclass
class Api:
    """One replica of the API."""

    url: str
    source: str
    target: str

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Tickover-Client": "tests", **options.pop("headers", {})}
        return httpx.request(method, self.url + path, timeout=ANSWER_S, headers=headers, **options)

    def message(self, key: str = "", **body: Any) -> httpx.Response:
        headers = {"idempotency-key": key} if key else {}
        return self.call("POST", "/v1/messages", json={"target": self.target, **body}, headers=headers)


@pytest.fixture
def replicas(kafka: Kafka, client: Any) -> Iterator[tuple[Api, Api]]:
    """Two of them, on the same topics and the same Redis."""
    policies_topic = f"{kafka.topic('api-policies')}-log"
    kafka.create_topic(f"{policies_topic}-audit")
    source, target = kafka.topic("api-source", 6), kafka.topic("api-target")
    stops: list[Callable[[], None]] = []
    made = []
    try:
        for _ in range(2):
            server, parts = replica(kafka, policies_topic, client)
            stops += parts
            made.append(Api(f"http://127.0.0.1:{server.port}", source, target))
        yield made[0], made[1]
    finally:
        for stop in reversed(stops):
            stop()


def replica(kafka: Kafka, policies_topic: str, client: Any) -> tuple[Server, list[Callable[[], None]]]:
    settings = {"bootstrap.servers": kafka.bootstrap}
    store, sender = PolicyStore(settings, policies_topic), KafkaSender(settings)
    idempotency = RedisIdempotency(client, "test")
    stats = Stats(joined=True, turned_monotonic_s=time.monotonic())
    followed = TopicReader(settings)
    receipts, redriven = Receipts(1 << 20), redriven_of(Settings(), followed)
    ports = Ports(
        policies=store,
        stats=lambda: stats,
        sender=sender,
        audit_sender=sender,
        letters=(reading := reading_of(Settings(), settings, lambda: store.table, redriven)),
        redrives=(redrives := redrives_of(Settings(), followed, store, reading, redriven)[0]),
        resending=resending_of(Settings(), settings, redriven, redrives),
        governor=governor_of(Settings()),
        changes=changes_of(Settings(), followed, lambda: store.table, MemoryGroup(), receipts)[0],
        change_rate=0,
        schedules=schedule_store_of(Settings(), followed),
        pauses=MemoryPauses().store,
        schedule_limits=limits_of(Settings()),
        audit_topic=f"{policies_topic}-audit",
        idempotency=idempotency,
        receipts=receipts,
        lookup=LookUp(MemoryHeld()),
        conditions=MemoryConditions(),
        metrics=Exposition(lambda: stats, lambda: store.table, Recorder()),
        gate=Gate(),
        sources=MemorySources(),
        about=About(Settings()),
        now_ms=lambda: time.time_ns() // 1_000_000,
        monotonic_s=time.monotonic,
        group=MemoryOverview(),
    )
    server = Server(create_app(ports), "127.0.0.1", 0)
    store.start(WAIT_S)
    sender.start()
    server.start()
    return server, [store.stop, sender.stop, idempotency.stop, server.stop]


def policy(api: Api) -> dict[str, Any]:
    return {
        "name": "reminders",
        "match": {"topics": [api.source]},
        "delay": {"default": "15m"},
        "target": {"allow": [api.target]},
    }


def create(api: Api) -> httpx.Response:
    return api.call("PUT", "/v1/policies/reminders", json=policy(api), headers={"if-none-match": "*"})


def test_a_policy_made_here_is_followed_there(replicas: tuple[Api, Api]) -> None:
    here, there = replicas
    assert create(here).status_code == 201
    wait_until(lambda: there.call("GET", "/v1/policies/reminders").status_code == 200)
    assert create(there).status_code == 412

    changed = {**policy(here), "delay": {"default": "1m"}}
    replaced = there.call("PUT", "/v1/policies/reminders", json=changed, headers={"if-match": '"1"'})
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')
    rolled_back = there.call("POST", "/v1/policies/reminders/rollback", json={"version": 1})
    assert rolled_back.json()["delay"]["default"] == "15m"
    deleted = there.call("DELETE", "/v1/policies/reminders", headers={"if-match": '"3"'})
    assert deleted.status_code == 204
    wait_until(lambda: here.call("GET", "/v1/policies/reminders").status_code == 404)
    assert len(here.call("GET", "/v1/policies/reminders/versions").json()["items"]) == 4


def test_an_accepted_message_is_in_kafka(kafka: Kafka, replicas: tuple[Api, Api]) -> None:
    api, _ = replicas
    create(api)
    headers = [["a", "1"], ["a", None], ["b", {"base64": "/wA="}], ["c", ""]]
    before_ms = time.time_ns() // 1_000_000
    answers = [
        api.message(key="", value="é", headers=headers, delay="90s", id="x"),
        api.call("POST", "/v1/messages", json={"target": api.target, "key": "k", "value": None}),
        api.call("POST", "/v1/messages", json={"target": api.target, "key": "", "id": "y"}),
    ]
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    records = {(record.partition(), record.offset()): record for record in kafka.read(api.source, 3)}
    first, second, third = (
        records[answer.json()["position"]["partition"], answer.json()["position"]["offset"]] for answer in answers
    )
    assert (first.key(), first.value()) == (None, "é".encode())
    assert first.headers() == [
        ("a", b"1"),
        ("a", None),
        ("b", b"\xff\x00"),
        ("c", b""),
        ("tickover-delay", b"90s"),
        ("tickover-target", api.target.encode()),
        ("tickover-id", b"x"),
    ]
    assert answers[0].json()["due"] == first.timestamp()[1] + 90_000 >= before_ms + 90_000
    assert (second.key(), second.value()) == (b"k", None)
    assert answers[1].json()["due"] == second.timestamp()[1] + 900_000
    assert third.key() == b""


def test_the_same_key_goes_where_a_producer_would_send_it(kafka: Kafka, replicas: tuple[Api, Api]) -> None:
    api, _ = replicas
    create(api)
    keys = [f"key-{number}" for number in range(12)]
    reports = kafka.produce(api.source, [(key.encode(), b"") for key in keys])
    ours = [
        api.call("POST", "/v1/messages", json={"target": api.target, "key": key}).json()["position"]["partition"]
        for key in keys
    ]
    theirs = {report.key(): report.partition() for report in reports}
    assert ours == [theirs[key.encode()] for key in keys]


def test_idempotent_on_every_replica(kafka: Kafka, replicas: tuple[Api, Api]) -> None:
    here, there = replicas
    create(here)
    wait_until(lambda: there.call("GET", "/v1/policies/reminders").status_code == 200)
    first, second = here.message(key="k", value="1"), there.message(key="k", value="1")
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert there.message(key="k", value="2").status_code == 422
    assert [record.value() for record in kafka.read_all(here.source)] == [b"1"]


def test_a_topic_with_its_own_time(kafka: Kafka, replicas: tuple[Api, Api]) -> None:
    api, _ = replicas
    source = kafka.topic("api-appended", 1, message_timestamp_type="LogAppendTime")
    document = {**policy(api), "match": {"topics": [source]}}
    api.call("PUT", "/v1/policies/reminders", json=document, headers={"if-none-match": "*"})
    answer = api.message(delay="1s").json()
    (record,) = kafka.read(source, 1)
    assert answer["due"] == record.timestamp()[1] + 1_000


def test_unknown_topics_are_not_created(kafka: Kafka, replicas: tuple[Api, Api]) -> None:
    api, _ = replicas
    document = {**policy(api), "match": {"topics": ["api-none"]}}
    api.call("PUT", "/v1/policies/reminders", json=document, headers={"if-none-match": "*"})
    assert api.message().json()["type"] == "/problems/unknown-source"
    assert "api-none" not in kafka.admin.list_topics(timeout=WAIT_S).topics


def test_a_record_that_the_topic_refuses(kafka: Kafka, replicas: tuple[Api, Api]) -> None:
    api, _ = replicas
    source = kafka.topic("api-small", 1, max_message_bytes=2_000)
    document = {**policy(api), "match": {"topics": [source]}}
    api.call("PUT", "/v1/policies/reminders", json=document, headers={"if-none-match": "*"})
    answer = api.message(value="x" * 10_000)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/too-large")


Store = Callable[[], Idempotency]


@pytest.fixture(params=["memory", "redis"])
def idempotency(request: pytest.FixtureRequest, client: Any) -> Iterator[Idempotency]:
    """The fake and the real one keep the same contract."""
    if request.param == "memory":
        yield MemoryIdempotency()
    else:
        store = RedisIdempotency(client, "test")
        yield store
        store.stop()


class Holders:
    """The names of leases, by key, as `begin` gave them; answers without them, since they differ each time."""

    def __init__(self, store: Idempotency) -> None:
        self._store = store
        self._holders: dict[str, str] = {}

    async def begin(self, key: str, body: bytes, now_ms: int) -> Any:
        answer = await self._store.begin(key, body, now_ms)
        if isinstance(answer, Fresh):
            self._holders[key] = answer.holder
            return answer._replace(holder="")
        return answer

    async def release(self, key: str) -> None:
        await self._store.release(key, self._holders.get(key, "nobody"))

    async def forget(self, key: str) -> None:
        await self._store.forget(key, self._holders.get(key, "nobody"))

    async def finish(self, key: str, response: bytes) -> None:
        await self._store.finish(key, self._holders.get(key, "nobody"), response)


def run(*steps: Callable[[], Awaitable[Any]]) -> list[Any]:
    async def in_order() -> list[Any]:
        return [await step() for step in steps]

    return asyncio.run(in_order())


def test_store_of_answers(idempotency: Idempotency) -> None:
    store = Holders(idempotency)
    assert run(
        lambda: store.begin("k", b"a", 5),
        lambda: store.begin("k", b"a", 6),
        lambda: store.begin("k", b"b", 6),
        lambda: store.release("k"),
        lambda: store.begin("k", b"b", 7),
        lambda: store.begin("k", b"a", 7),
        lambda: store.finish("k", b"{}"),
        lambda: store.begin("k", b"a", 8),
        lambda: store.begin("k", b"b", 8),
        lambda: store.begin("other", b"b", 9),
        lambda: store.forget("other"),
        lambda: store.begin("other", b"c", 10),
    ) == [
        Fresh(5, ""),
        Busy(),
        Mismatch(),
        None,
        Mismatch(),
        Fresh(5, ""),
        None,
        Answered(b"{}"),
        Mismatch(),
        Fresh(9, ""),
        None,
        Fresh(10, ""),
    ]


def test_answers_are_kept_for_a_day_under_a_hash(client: Any) -> None:
    kept = RedisIdempotency(client, "test")
    store = Holders(kept)
    run(lambda: store.begin("secret", b"\xff\x00", 5), lambda: store.finish("secret", b"{}"))
    (key,) = client.keys()
    assert key.startswith(b"tickover:test:idempotency:")
    assert b"secret" not in key
    assert 86_300 < client.ttl(key) <= 86_400
    run(lambda: store.finish("never begun", b"{}"), lambda: store.release("never begun"))
    assert client.keys() == [key]
    kept.stop()


def test_a_lease_runs_out(client: Any) -> None:
    kept = RedisIdempotency(client, "test")
    store = Holders(kept)
    before_s, _ = client.time()
    assert run(lambda: store.begin("k", b"a", 5)) == [Fresh(5, "")]
    after_s, _ = client.time()
    (key,) = client.keys()
    assert before_s * 1_000 <= int(client.hget(key, "busy_until")) - LEASE_MS < (after_s + 1) * 1_000
    client.hset(key, "busy_until", after_s * 1_000)
    assert run(lambda: store.begin("k", b"a", 6)) == [Fresh(5, "")]
    kept.stop()


def test_only_one_of_many_is_first(client: Any) -> None:
    store = RedisIdempotency(client, "test")

    async def rush() -> list[Any]:
        return await asyncio.gather(*(store.begin("k", b"a", number) for number in range(50)))

    words = asyncio.run(rush())
    assert sum(isinstance(word, Fresh) for word in words) == 1
    assert sum(isinstance(word, Busy) for word in words) == 49
    store.stop()


def test_redis_is_down(tmp_path: Path) -> None:
    with redis.Redis(unix_socket_path=str(tmp_path / "none")) as client:
        store = RedisIdempotency(client, "test")
        with pytest.raises(IdempotencyUnavailable):
            run(lambda: store.begin("k", b"a", 5))
        store.stop()
