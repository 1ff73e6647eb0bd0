"""Where Redis is, is asked again: Clusters, names and Sentinels that lead to other servers than before; and what each
form of `redis.url` leads to. On real servers.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis.exceptions import ReadOnlyError

from api.idempotency import RedisIdempotency
from api.ports import Fresh, IdempotencyUnavailable
from sidecar.doctor.acl import redis_rights
from sidecar.doctor.facts import Severity
from sidecar.doctor.redis import inspect_redis
from sidecar.doctor.redis import state as state_of
from sidecar.embedded.child import free_port
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.engine.storage.loss_check import CHECK_MS
from sidecar.engine.storage.overflow_worker import OverflowWorker
from sidecar.lookup.group import GroupLookUp
from sidecar.lookup.local import LocalLookUp
from sidecar.lookup.meeting import Meeting
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import Change, OverflowLoss, OverflowRefused, OverflowUnavailable
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from sidecar.settings.settings import Settings
from sidecar.settings.watched_file import FileSecret
from tests.contract.overflow_records import LANE, NOW_MS, START, held
from tests.contract.redis_servers import SLOTS, debian_redis, is_ok, valkey_fixture
from tests.services.certificates import Authority
from tests.services.redis_proxy import RedisProxy
from tests.services.redis_sentinel import PASSWORD, USER, SentinelGroup, ask, port_of, watched_servers
from tests.services.secure_redis import allow
from tests.services.waiting import wait_until
from tests.simulation.fake_executor import StepExecutor
from tests.unit.fake_backlog import FakeBacklog
from tests.unit.report_world import report_of

pytestmark = pytest.mark.slow

__all__ = ["valkey_fixture"]

HOUR_MS = 3_600_000
SOON_S = 30.0
LOGIN = {"sentinel_username": USER, "sentinel_password": PASSWORD}
SPECIAL = "p@:/?#[]!$&'()*+,;=%41 %zz\"\\^`{|}~ä€"


def cluster_of_one(stack: ExitStack, directory: Path) -> EmbeddedValkey:
    """A Cluster of one node, which has all slots."""
    settings = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    node = EmbeddedValkey(directory, free_port(), settings)
    stack.callback(node.kill)
    node.start()
    with ask(node) as client:
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        wait_until(lambda: is_ok(client))
    return node


@pytest.fixture
def name() -> Iterator[RedisProxy]:
    """A name: it leads to another server as soon as somebody says so."""
    proxy = RedisProxy(0).start()
    yield proxy
    proxy.stop()


def lead_to(name: RedisProxy, server: EmbeddedValkey) -> None:
    name.server_port = port_of(server)


def test_a_cluster_whose_nodes_all_come_back_elsewhere_is_found_by_its_name(tmp_path: Path, name: RedisProxy) -> None:
    """Each client finds out by its next call: where nothing is held, that is only the look at the Cluster's state."""
    with ExitStack() as stack:
        former = cluster_of_one(stack, tmp_path / "former")
        name.server_port = 1  # nobody there at the start
        holding, looking = (open_overflow(f"redis+cluster://127.0.0.1:{name.port}", "g") for _ in range(2))
        for overflow in (holding, looking):
            stack.callback(overflow.close)
            with pytest.raises(OverflowUnavailable):
                state_of(overflow.client)
        lead_to(name, former)
        assert looking.last_applied(LANE) == 0
        holding.apply([Change(LANE, 1, [held(1, HOUR_MS)])], NOW_MS)
        former.kill()
        with pytest.raises(OverflowUnavailable):
            holding.last_applied(LANE)
        lead_to(name, cluster_of_one(stack, tmp_path / "now"))
        assert holding.last_applied(LANE) == 0
        with pytest.raises(OverflowUnavailable):
            state_of(looking.client)
        assert state_of(looking.client).is_persistent


def test_while_a_cluster_is_away_its_keys_are_unavailable_and_replicas_hear_again_when_it_is_back(
    tmp_path: Path, name: RedisProxy
) -> None:
    with ExitStack() as stack:
        former = cluster_of_one(stack, tmp_path / "former")
        lead_to(name, former)
        late = connect("redis+cluster://127.0.0.1:1")
        with pytest.raises(IdempotencyUnavailable):
            asyncio.run(RedisIdempotency(late, "g").begin("key", b"of a body", NOW_MS))
        client = connect(f"redis+cluster://127.0.0.1:{name.port}")
        stack.callback(client.close)
        keys = RedisIdempotency(client, "g")
        stack.callback(keys.stop)
        replicas = GroupLookUp(nobody, Meeting(client, "g"), dict, FakeBacklog(), report_of)
        stack.callback(replicas.stop)
        replicas.start()
        assert replicas.heard.wait(SOON_S)
        former.kill()
        with pytest.raises(IdempotencyUnavailable):
            asyncio.run(keys.begin("key", b"of a body", NOW_MS))
        lead_to(name, cluster_of_one(stack, tmp_path / "now"))
        replicas.heard.clear()
        assert isinstance(asyncio.run(keys.begin("key", b"of a body", NOW_MS)), Fresh)
        assert replicas.heard.wait(SOON_S)


def nobody() -> LocalLookUp:
    raise AssertionError("nothing is asked")


def test_a_server_that_became_a_replica_is_left_for_where_its_name_leads(tmp_path: Path, name: RedisProxy) -> None:
    """Connections to the former server stay open: managed Redis fails over so."""
    former = EmbeddedValkey(tmp_path / "former", free_port())
    now = EmbeddedValkey(tmp_path / "now", free_port())
    with ExitStack() as stack:
        for server in (former, now):
            stack.callback(server.kill)
            server.start()
        lead_to(name, former)
        overflow = open_overflow(name.url, "g")
        stack.callback(overflow.close)
        overflow.apply([Change(LANE, 1, [])], NOW_MS)
        ask(former).execute_command("REPLICAOF", "127.0.0.1", port_of(now))
        lead_to(name, now)
        changes = [Change(LANE, 2, []), Change(LANE, 3, [])]
        with pytest.raises(OverflowRefused, match="read only") as refusal:
            overflow.apply(changes, NOW_MS)
        assert isinstance(refusal.value.__cause__, ReadOnlyError)
        with pytest.raises(OverflowLoss):
            overflow.apply(changes, NOW_MS)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with watched_servers(tmp_path_factory.mktemp("watched")) as group:
        yield group


def test_the_password_of_sentinels_is_read_at_each_connection(group: SentinelGroup, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("of before")
    options = {"sentinel_username": USER, "sentinel_password": FileSecret("of before", path)}
    with closing(open_overflow(group.url, "g", options)) as overflow:
        with pytest.raises(OverflowUnavailable, match=r"login of redis\.sentinel_username"):
            overflow.last_applied(LANE)
        path.write_text(PASSWORD)
        assert overflow.last_applied(LANE) == 0


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_renewed_password_of_redis_counts_at_the_next_connection(
    tmp_path: Path, group: SentinelGroup, kind: str
) -> None:
    path = tmp_path / "password"
    path.write_text("of before")
    with ExitStack() as stack:
        server, url = group.primary, group.url
        if kind == "cluster":
            server = cluster_of_one(stack, tmp_path / "node")
            url = server.url.replace("redis:", "redis+cluster:")
        owner = ask(server)
        owner.execute_command("ACL", "SETUSER", "me", "on", ">of before", "~*", "&*", "+@all")
        options = {"username": "me", "password": FileSecret("of before", path), **(LOGIN if kind == "sentinel" else {})}
        overflow = open_overflow(url, "g", options)
        stack.callback(overflow.close)
        assert overflow.last_applied(LANE) == 0
        owner.execute_command("ACL", "SETUSER", "me", "resetpass", ">renewed")
        owner.execute_command("CLIENT", "KILL", "USER", "me")
        with pytest.raises(OverflowUnavailable, match="invalid username-password pair"):
            overflow.last_applied(LANE)
        path.write_text("renewed")
        assert overflow.last_applied(LANE) == 0


@pytest.mark.parametrize(
    ("url", "login", "says", "fix"),
    [
        ("redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/other", LOGIN, "knows no other", "service that ends redis.url"),
        ("redis+sentinel://127.0.0.1:1/held", LOGIN, "no Sentinel names the primary of held", "the Sentinels run"),
        ("redis+sentinel://127.0.0.1:{port}/held", {}, "refuses the login", "redis.sentinel_password"),
        ("redis+sentinel://127.0.0.1:{port}/stale", LOGIN, "which is none now", "the Sentinels run"),
    ],
)
def test_what_is_wrong_with_sentinels_is_named(
    group: SentinelGroup, url: str, login: dict[str, str], says: str, fix: str
) -> None:
    if "stale" in url:
        group.sentinel("MONITOR", "stale", "127.0.0.1", str(port_of(group.replica)), "1")
    settings = Settings.model_validate({"redis": {"url": url.format(port=group.port), **login}})
    with pytest.raises(OverflowUnavailable) as failure, closing(connect_by(settings)) as overflow:
        overflow.last_applied(LANE)
    assert says in str(failure.value)
    [finding] = inspect_redis(settings, lambda: NOW_MS)
    assert (finding.severity, says in finding.what, fix in finding.fix) == (Severity.ERROR, True, True), finding
    assert PASSWORD not in f"{failure.value} {finding}"


def test_a_server_of_another_kind_is_named(group: SentinelGroup) -> None:
    """In `/readyz` and by `doctor`, with what to do."""
    server, sentinel = f"127.0.0.1:{port_of(group.primary)}", f"127.0.0.1:{group.port}"
    wrongs: dict[str, tuple[dict[str, str], str, str]] = {
        f"redis://{server}/99": ({}, "correct the database at the end of redis.url", "correct the database"),
        f"redis://{sentinel}": ({"password": PASSWORD}, "a Sentinel needs redis+sentinel://", "a Sentinel needs"),
        f"redis+sentinel://{server}/held": ({}, "unknown command 'SENTINEL'", "this is no Sentinel"),
        f"redis+cluster://{server}": ({}, "Cluster mode is not enabled", "this is no Cluster"),
        f"redis://me@{server}": (
            {"password": PASSWORD},
            "refuses the login of redis.username",
            "correct redis.username",
        ),
    }
    for url, (login, says, fix) in wrongs.items():
        settings = Settings.model_validate({"redis": {"url": url, **login}})
        with pytest.raises(OverflowUnavailable) as failure, closing(connect_by(settings)) as overflow:
            overflow.last_applied(LANE)
        assert says in str(failure.value)
        [finding] = inspect_redis(settings, lambda: NOW_MS)
        assert (finding.severity, fix in finding.fix) == (Severity.ERROR, True), finding
        assert PASSWORD not in f"{failure.value} {finding}"


def connect_by(settings: Settings) -> RedisOverflow:
    return open_overflow(settings.redis.url, "g", settings.redis.client_options())


@pytest.mark.parametrize("url", ["redis://me:{escaped}@127.0.0.1:{port}/1", "redis://127.0.0.1:{port}/1"])
def test_any_password_logs_in(tmp_path: Path, url: str) -> None:
    """In the URL what would end it is written by its escape; in the setting of its own everything stands for itself."""
    server = EmbeddedValkey(tmp_path, free_port())
    server.start()
    try:
        ask(server).execute_command("ACL", "SETUSER", "me", "on", f">{SPECIAL}", "~*", "&*", "+@all")
        redis: dict[str, Any] = {"url": url.format(port=port_of(server), escaped=quote(SPECIAL, safe="@:[]!$"))}
        if "@" not in url:
            redis |= {"username": "me", "password": SPECIAL}
        settings = Settings.model_validate({"redis": redis})
        with closing(connect_by(settings)) as overflow:
            overflow.apply([Change(LANE, 1, [])], NOW_MS)
        assert ask(server).info("keyspace")["db1"]["keys"]
    finally:
        server.kill()


def test_a_socket_and_its_database(valkey: EmbeddedValkey) -> None:
    settings = Settings.model_validate({"redis": {"url": f"{valkey.url}?db=2"}})
    assert "select" in redis_rights(settings).commands
    with closing(connect_by(settings)) as overflow:
        overflow.apply([Change(LANE, 1, [])], NOW_MS)
        assert ask(valkey).info("keyspace")["db2"]["keys"]
        findings = list(inspect_redis(settings, lambda: NOW_MS))
        assert findings[0].what.endswith(f"answers at {valkey.url}?db=2")
        valkey.kill()
        with pytest.raises(OverflowUnavailable):
            overflow.last_applied(LANE)
        [finding] = inspect_redis(settings, lambda: NOW_MS)
        assert "no answer from unix://" in finding.what


@pytest.mark.integration
def test_a_certificate_is_checked_for_a_name_of_choice(tmp_path: Path) -> None:
    """The certificate is good for localhost and 127.0.0.1, and the server is reached by another address."""
    authority = Authority(tmp_path / "authority")
    own, port = authority.identity("redis"), free_port()
    files = {"tls-cert-file": str(own.certificate), "tls-key-file": str(own.key), "tls-auth-clients": "no"}
    settings = {"bind": "127.0.0.1 127.0.0.2", "tls-port": str(port), "tls-ca-cert-file": str(authority.certificate)}
    server = EmbeddedValkey(tmp_path / "server", settings=settings | files, server=debian_redis())
    server.start()
    try:
        redis = {"url": f"rediss://127.0.0.2:{port}", "ca_file": str(authority.certificate)}
        wrong = Settings.model_validate({"redis": redis})
        [finding] = inspect_redis(wrong, lambda: NOW_MS)
        assert "set redis.tls_name" in finding.fix, finding
        [finding] = inspect_redis(Settings.model_validate({"redis": {**redis, "tls_name": "other"}}), lambda: NOW_MS)
        assert "set redis.tls_name" in finding.fix, finding
        named = Settings.model_validate({"redis": {**redis, "tls_name": "localhost"}})
        with closing(connect_by(named)) as overflow:
            assert overflow.last_applied(LANE) == 0
            assert overflow.client.connection_pool.get_connection().host == "127.0.0.2"
    finally:
        server.kill()


def test_a_fail_over_is_followed_and_what_the_new_primary_lacks_is_a_loss(group: SentinelGroup) -> None:
    """By a user with just the rights of `tickover acl print`, in another database than the first.

    The last test of this file, for it ends the primary.
    """
    url = group.url.replace("://", "://127.0.0.1:1,").replace(",127", ",127", 1) + "/3"
    rights = redis_rights(Settings.model_validate({"group": "g", "redis": {"url": url}}))
    for server in (group.primary, group.replica):
        allow(server.url, "guest", "guest", rights)
    with closing(open_overflow(url, "g", {"username": "guest", "password": "guest", **LOGIN})) as overflow:
        writer = Writer(overflow)
        writer.write(1)
        wait_until(lambda: ask(group.replica).info("keyspace").get("db3"))
        group.follow(1)
        writer.write(2)
        group.fail_over()
        wait_until(writer.has_loss, otherwise=lambda: writer.worker.problem)
        assert writer.lane.loss is not None
        assert (writer.lane.loss.hw, writer.lane.acknowledged) == (1, 2)
        assert "2 change blocks were acknowledged, 1 are there" in writer.lane.loss.detail
        with pytest.raises(OverflowLoss):
            overflow.apply([Change(LANE, 3, [])], NOW_MS)


class Writer:
    """The overflow's worker with one lane. A second passes with each step."""

    def __init__(self, overflow: RedisOverflow) -> None:
        self._executor = StepExecutor()
        self._now_ms = NOW_MS
        self.worker = OverflowWorker(overflow, 2_000, lambda lane, records: None, self._executor)
        self.lane = SourcePartition(LANE, Wheel(NOW_MS), PromotionWindows(START))
        for offset in range(3):
            self.lane.accept(offset)

    def step(self) -> None:
        self._now_ms += CHECK_MS
        self.worker.step([self.lane], self._now_ms, 0)
        self._executor.run()
        self.worker.apply([self.lane], self._now_ms)

    def write(self, number: int) -> None:
        """A change block, until it is acknowledged."""
        record = held(number, HOUR_MS)
        self.lane.changes.append(ChangeBlock(number, {number: record}, set(), record.position, 0, committed=True))
        self.step()
        self.step()
        assert (self.lane.acknowledged, self.worker.problem) == (number, "")

    def has_loss(self) -> bool:
        self.step()
        return self.lane.loss is not None
