"""The overflow's server stopped, frozen, misconfigured; another process moving things while we read."""

from collections.abc import Callable, Sequence
from os import kill
from signal import SIGCONT, SIGSTOP
from typing import Any
from uuid import uuid4

import pytest

from sidecar.doctor.facts import Severity
from sidecar.doctor.redis import inspect
from sidecar.doctor.redis import state as state_of
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.model.record import Position
from sidecar.overflow import connection as overflow_link
from sidecar.overflow.connection import connect, script_hash
from sidecar.overflow.interface import Change, NewerOverflowFormat, OverflowLoss, OverflowUnavailable, Redo
from sidecar.overflow.keys import COARSE, DUE_MAX_MS, FORMAT, LaneKeys
from sidecar.overflow.rebuild_store import RedisRebuildStore
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from sidecar.overflow.scripts import ADD, READ, REMOVE
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held, in_order, promote_all
from tests.contract.redis_servers import RedisServer, redis_server_fixture, valkey_fixture

pytestmark = pytest.mark.slow

__all__ = ["redis_server_fixture", "valkey_fixture"]

HOUR_MS = 3_600_000
RECORDS = [held(offset, offset * 9_973 % (6 * HOUR_MS)) for offset in range(2_000)]


class Interrupted:
    """A real client that lets something happen just before a script runs for the first time."""

    def __init__(self, client: Any, interruption: Callable[[], object], script: str = READ) -> None:
        self._client = client
        self._interruption: Callable[[], object] | None = interruption
        self._awaited = script_hash(script)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def evalsha(self, name: str, *arguments: Any) -> Any:
        self.notice(name)
        return self._client.evalsha(name, *arguments)

    def pipeline(self, transaction: bool) -> Any:
        return InterruptedPipeline(self._client.pipeline(transaction=transaction), self.notice)

    def notice(self, name: str) -> None:
        if name == self._awaited and self._interruption is not None:
            interruption, self._interruption = self._interruption, None
            interruption()


class InterruptedPipeline:
    """Calls of scripts that are sent together."""

    def __init__(self, pipeline: Any, notice: Callable[[str], None]) -> None:
        self._pipeline = pipeline
        self._notice = notice
        self.execute = pipeline.execute

    def execute_command(self, command: str, name: str, *arguments: Any) -> None:
        self._notice(name)
        self._pipeline.execute_command(command, name, *arguments)


def put(url: str) -> None:
    overflow = open_overflow(url, "g")
    overflow.apply([Change(LANE, 1, RECORDS)], NOW_MS)
    overflow.close()


def tidy_all(url: str, settled: Position, now_ms: int) -> None:
    other = open_overflow(url, "g")
    while other.tidy(LANE, settled, now_ms):
        pass
    other.close()


def test_a_cascade_between_header_and_content_loses_nothing(valkey: EmbeddedValkey) -> None:
    put(valkey.url)
    client = Interrupted(connect(valkey.url), lambda: tidy_all(valkey.url, START, NOW_MS + 5 * HOUR_MS))
    overflow = RedisOverflow(client, "g")
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(RECORDS)
    assert not client.zcount(LaneKeys("g", LANE).level(COARSE), 0, DUE_MAX_MS)
    overflow.close()


def test_two_cascades_at_once_lose_nothing(valkey: EmbeddedValkey) -> None:
    put(valkey.url)
    now_ms = NOW_MS + 5 * HOUR_MS
    client = Interrupted(connect(valkey.url), lambda: tidy_all(valkey.url, START, now_ms))
    overflow = RedisOverflow(client, "g")
    while overflow.tidy(LANE, START, now_ms):
        pass
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(RECORDS)
    overflow.close()


def test_a_cascade_brings_nothing_back_that_was_cleared_away_meanwhile(valkey: EmbeddedValkey) -> None:
    """A process has lost its lane, and has read what it is about to move. The owner clears it, and writes it again."""
    put(valkey.url)
    overflow = open_overflow(valkey.url, "g")
    kept = RECORDS[:1_500]

    def write_again() -> None:
        rebuild = RedisRebuildStore(overflow.client, "g")
        begin = True
        while rebuild.reset(LANE, begin):
            begin = False
        rebuild.redo(LANE, [Redo(0, 1, kept)], NOW_MS)

    former = RedisOverflow(Interrupted(connect(valkey.url), write_again, ADD), "g")
    former.tidy(LANE, START, NOW_MS + 5 * HOUR_MS)
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(kept)
    former.close()
    overflow.close()


class CutError(Exception):
    """The process ended here."""


@pytest.mark.parametrize("script", [ADD, REMOVE])
def test_a_cascade_cut_short_leaves_copies_that_are_dropped(valkey: EmbeddedValkey, script: str) -> None:
    put(valkey.url)

    def cut() -> None:
        raise CutError

    overflow = RedisOverflow(Interrupted(connect(valkey.url), cut, script), "g")
    with pytest.raises(CutError):
        overflow.tidy(LANE, START, NOW_MS + 5 * HOUR_MS)
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(RECORDS)
    overflow.close()


def test_a_restarted_server_is_used_again_by_itself(valkey: EmbeddedValkey) -> None:
    put(valkey.url)
    overflow = open_overflow(valkey.url, "g")
    assert overflow.last_applied(LANE) == 1
    valkey.kill()
    with pytest.raises(OverflowUnavailable):
        overflow.last_applied(LANE)
    with pytest.raises(OverflowUnavailable):
        overflow.apply([Change(LANE, 2, RECORDS), Change(LANE, 3, [])], NOW_MS)
    valkey.start()
    assert overflow.last_applied(LANE) == 1
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(RECORDS)
    overflow.close()


def test_a_frozen_server_is_given_up_after_one_timeout(valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    put(valkey.url)
    with monkeypatch.context() as hasty:
        hasty.setattr(overflow_link, "SOCKET_TIMEOUT_S", 0.3)
        overflow = open_overflow(valkey.url, "g")
    kill(valkey.process_id, SIGSTOP)
    try:
        with pytest.raises(OverflowUnavailable):
            overflow.promote(LANE, START, at(HOUR_MS), 10, 1)
    finally:
        kill(valkey.process_id, SIGCONT)
    overflow.close()
    overflow = open_overflow(valkey.url, "g")
    assert promote_all(overflow, START, at(6 * HOUR_MS)) == in_order(RECORDS)
    overflow.close()


def test_a_damaged_chunk_is_loss(valkey: EmbeddedValkey) -> None:
    put(valkey.url)
    overflow = open_overflow(valkey.url, "g")
    for key in overflow.client.scan_iter(match="*}:a:*"):
        for member in overflow.client.hkeys(key):
            overflow.client.hset(key, member, b"something else")
    with pytest.raises(OverflowLoss):
        overflow.promote(LANE, START, at(HOUR_MS), 10, 1)
    overflow.close()


@pytest.mark.parametrize("member", [b"short", bytes(59)])
def test_a_header_of_another_version_is_not_guessed_at(valkey: EmbeddedValkey, member: bytes) -> None:
    overflow = open_overflow(valkey.url, "g")
    overflow.client.zadd(LaneKeys("g", LANE).level(COARSE), {member: NOW_MS})
    with pytest.raises(OverflowLoss):
        overflow.promote(LANE, START, at(HOUR_MS), 10, 0)
    overflow.close()


def test_what_a_newer_program_wrote_is_neither_read_nor_deleted(valkey: EmbeddedValkey) -> None:
    put(valkey.url)
    overflow = open_overflow(valkey.url, "g")
    key = LaneKeys("g", LANE).level(COARSE)
    [(old, score)] = overflow.client.zrange(key, 0, 0, withscores=True)
    new = old[:50] + bytes([FORMAT + 1]) + old[51:]
    overflow.client.zadd(key, {new: score})
    with pytest.raises(NewerOverflowFormat):
        overflow.promote(LANE, START, at(6 * HOUR_MS), 10_000, 1)
    with pytest.raises(NewerOverflowFormat):
        overflow.tidy(LANE, START, NOW_MS + 5 * HOUR_MS)
    with pytest.raises(NewerOverflowFormat):
        RedisRebuildStore(overflow.client, "g").reset(LANE, begin=False)
    assert overflow.client.zscore(key, new) == score
    overflow.close()


@pytest.mark.parametrize(
    ("settings", "severity", "words"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, Severity.ERROR, "allkeys-lru"),
        ({"appendonly": "no"}, Severity.WARNING, "neither"),
        ({"maxmemory": "0"}, Severity.WARNING, "maxmemory is not set"),
        ({"maxmemory": "99999gb"}, Severity.WARNING, "of the host's memory"),
    ],
)
def test_findings(valkey: EmbeddedValkey, settings: dict[str, str], severity: Severity, words: str) -> None:
    overflow = open_overflow(valkey.url, "g")
    for name, value in settings.items():
        overflow.client.config_set(name, value)
    (finding,) = inspect(overflow.client)
    assert finding.severity is severity
    assert words in finding.message
    assert finding.fix.startswith("redis-cli CONFIG SET")
    assert state_of(overflow.client).is_persistent == (settings.get("appendonly") != "no")
    overflow.close()


@pytest.mark.integration
@pytest.mark.parametrize("redis_server", ["cluster"], indirect=True)
def test_any_host_of_a_cluster_that_answers_will_do(redis_server: RedisServer) -> None:
    there = ",".join(node.url.removeprefix("redis://") for node in redis_server.nodes[1:])
    overflow = open_overflow(f"redis+cluster://127.0.0.1:1,{there}", uuid4().hex)
    assert overflow.last_applied(LANE) == 0
    overflow.close()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
def test_nobody_there(scheme: str) -> None:
    """Every call raises OverflowUnavailable, so that a process which starts then goes on without Redis."""
    overflow = open_overflow(f"{scheme}://127.0.0.1:1" + "/held" * scheme.endswith("sentinel"), "g")
    calls: Sequence[Callable[[], object]] = [
        lambda: overflow.last_applied(LANE),
        lambda: overflow.tidy(LANE, START, NOW_MS),
        lambda: inspect(overflow.client),
    ]
    for call in calls:
        with pytest.raises(OverflowUnavailable):
            call()
