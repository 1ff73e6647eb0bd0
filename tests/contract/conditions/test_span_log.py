"""Spans in a real Redis, on one server and in a Cluster: of all replicas, within limits, and only what is ours."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.conditions import store
from sidecar.conditions.attribution import Span
from sidecar.conditions.store import RedisSpanLog, prefix_of
from sidecar.model.condition import Kind, Subject
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import OverflowFailure
from sidecar.overflow.signing import Signing
from tests.contract.redis_servers import RedisServer, redis_server_fixture

__all__ = ["redis_server_fixture"]

GROUP = "span-log"
PREFIX = prefix_of(GROUP)
HERE = Subject(Kind.RUNNING, "reminders", 3)
MAIL = Subject(Kind.RATE, "mail")
AT_MS = 1_800_000_000_000


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Any]:
    """As the sidecar's user, who may do what `doctor` says and no more."""
    client = connect(redis_server.url)
    yield client
    client.close()


@pytest.fixture
def owner(redis_server: RedisServer) -> Iterator[Any]:
    """The owner of the server, who may do all."""
    client = connect(redis_server.owner_url or redis_server.url)
    forget(client)
    yield client
    forget(client)
    client.close()


def forget(client: Any) -> None:
    for what in ("partitions", "targets", "processes", "open"):
        client.delete(PREFIX + what)


def span(log: RedisSpanLog, subject: Subject, begin: int, end: int) -> Span:
    """Of this run; seconds."""
    return Span(subject, AT_MS + begin * 1_000, AT_MS + end * 1_000, log.run, "one")


def test_every_replica_reads_what_all_have_written(client: Any, owner: Any) -> None:
    one, other = RedisSpanLog(client, GROUP), RedisSpanLog(client, GROUP)
    ended = [span(one, HERE, 0, 10), span(one, MAIL, 2, 4), span(one, Subject(Kind.REDIS), 5, 6)]
    for _ in range(2):  # a reply that was lost
        one.write(ended, [span(one, MAIL, 8, 12)], AT_MS + 12_000)
    other.write([], [span(other, HERE, 11, 12)], AT_MS + 12_000)
    going_on = {span(one, MAIL, 8, 12), span(other, HERE, 11, 12)}
    for log in (one, other):
        found, under_way = log.read(AT_MS)
        assert (set(found), len(found), set(under_way)) == (set(ended), 3, going_on)
    assert other.read(AT_MS + 10_500)[0] == [span(one, HERE, 0, 10)], "who had it before"
    assert other.read(AT_MS + 10_001 + store.OWNERS_BACK_MS)[0] == []
    one.write([span(one, MAIL, 8, 14)], [], AT_MS + 14_000)
    found, under_way = other.read(AT_MS)
    assert span(one, MAIL, 8, 14) in found
    assert under_way == [span(other, HERE, 11, 12)]


def test_what_had_ended_at_the_last_sign_is_not_under_way(client: Any, owner: Any) -> None:
    log = RedisSpanLog(client, GROUP)
    log.write([], [span(log, HERE, 0, 12), span(log, MAIL, 3, 11)], AT_MS + 12_000)
    assert log.read(AT_MS) == ([span(log, MAIL, 3, 11)], [span(log, HERE, 0, 12)])
    assert log.read(AT_MS + 11_000) == ([], [span(log, HERE, 0, 12)])


def test_a_killed_process_had_its_partitions_until_its_last_sign(
    client: Any, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FILE_EVERY", 1)
    killed, next_one = RedisSpanLog(client, GROUP), RedisSpanLog(client, GROUP)
    killed.write([], [span(killed, HERE, 0, 20)], AT_MS + 20_000)
    for second in (31, 100):  # as it lies there, and filed away
        next_one.write([], [span(next_one, HERE, 30, second)], AT_MS + second * 1_000)
        found, under_way = next_one.read(AT_MS)
        assert {*found, *under_way} == {span(killed, HERE, 0, 20), span(next_one, HERE, 30, second)}
    assert owner.hkeys(f"{PREFIX}open") == [next_one.run.encode()]


def test_limits_and_expiry(client: Any, owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SPANS_MAX", 5)
    log = RedisSpanLog(client, GROUP)
    log.write([span(log, MAIL, second, second + 1) for second in range(20)], [span(log, HERE, 0, 20)], AT_MS + 20_000)
    assert [one.from_ms for one in log.read(0)[0]] == [AT_MS + second * 1_000 for second in range(15, 20)]
    for what in ("targets", "open"):
        assert 0 < owner.ttl(PREFIX + what) <= store.KEPT_S
    late_ms = AT_MS + store.KEPT_S * 1_000 + 19_500
    log.write([Span(MAIL, late_ms - 1, late_ms, log.run, "one")], [], late_ms)
    assert [one.to_ms for one in log.read(0)[0]] == [AT_MS + 20_000, late_ms]


def test_what_is_not_ours_is_passed_over(client: Any, owner: Any) -> None:
    log = RedisSpanLog(client, GROUP)
    good = span(log, MAIL, 0, 1)
    log.write([good], [span(log, HERE, 0, 1)], AT_MS + 1_000)
    row = [*MAIL, AT_MS, AT_MS + 1, "r", "x"]
    bad = [b"rubbish", b"[]", b"{}", b"7", b'["rate"]', *(
        json.dumps([*row[:place], value, *row[place + 1:]]).encode()
        for place, value in ((0, "of-a-newer-version"), (1, "a b"), (2, "3"), (3, -1), (4, AT_MS - 1), (5, 9))
    )]  # fmt: skip
    owner.zadd(f"{PREFIX}targets", dict.fromkeys(bad, AT_MS + 1))
    for number, data in enumerate(
        (b"rubbish", b"[]", b'{"at": "x", "spans": []}', json.dumps({"at": AT_MS, "spans": [row]}))
    ):
        owner.hset(f"{PREFIX}open", f"run-{number}", data)
    assert log.read(0) == ([good], [span(log, HERE, 0, 1)])


def test_signed_spans_count_only_where_they_were_written(client: Any, owner: Any) -> None:
    keys = Signing((b"k" * 32,))
    log, stranger = RedisSpanLog(client, GROUP, keys), RedisSpanLog(client, GROUP)
    good = span(log, MAIL, 0, 1)
    log.write([good], [span(log, HERE, 0, 1)], AT_MS + 1_000)
    stranger.write([span(stranger, MAIL, 0, 9)], [span(stranger, HERE, 0, 1)], AT_MS + 1_000)
    [signed] = [one for one in owner.zrange(f"{PREFIX}targets", 0, -1) if one[:1] != b"["]
    owner.zadd(f"{PREFIX}processes", {signed: AT_MS + 1_000})
    assert log.read(0) == ([good], [span(log, HERE, 0, 1)])


def test_a_key_of_another_type_is_a_failure_that_may_pass(client: Any, owner: Any) -> None:
    owner.set(f"{PREFIX}targets", "x")
    log = RedisSpanLog(client, GROUP)
    with pytest.raises(OverflowFailure):
        log.read(0)
    with pytest.raises(OverflowFailure):
        log.write([span(log, MAIL, 0, 1)], [], AT_MS)
