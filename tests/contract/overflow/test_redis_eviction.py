"""A Redis that throws keys away when it is full: refused at start, watched while it runs, and noticed."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.exceptions import NoPermissionError, ResponseError

from policies.table import EMPTY_TABLE
from sidecar.doctor.facts import Severity
from sidecar.doctor.redis import evicting_policy, inspect
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.model.stats import Stats
from sidecar.overflow.interface import Change, OverflowFailure, OverflowLoss
from sidecar.overflow.keys import LaneKeys
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow
from sidecar.service.embedded_services import EvictionRefused, RedisWatch
from sidecar.service.metrics import Exposition, Recorder
from sidecar.settings.redis import RedisSettings
from tests.contract.overflow_records import LANE, NOW_MS, START, at, held
from tests.contract.redis_servers import valkey_fixture

pytestmark = pytest.mark.slow

__all__ = ["valkey_fixture"]

HOUR_MS = 3_600_000
WRITES_MAX = 5_000


@pytest.fixture(name="overflow")
def overflow_fixture(valkey: EmbeddedValkey) -> Iterator[RedisOverflow]:
    overflow = open_overflow(valkey.url, "g")
    yield overflow
    overflow.close()


def configure(overflow: RedisOverflow, **settings: str) -> None:
    for name, value in settings.items():
        overflow.client.config_set(name.replace("_", "-"), value)


def metrics(recorder: Recorder) -> Mapping[str, float]:
    text = Exposition(Stats, lambda: EMPTY_TABLE, recorder)().decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: sample.value for sample in found}


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_may_evict_what_is_held_is_refused_unless_that_is_allowed(
    overflow: RedisOverflow, policy: str
) -> None:
    configure(overflow, maxmemory_policy=policy)
    with pytest.raises(EvictionRefused, match=rf"{policy}.*CONFIG SET.*redis\.allow_eviction") as caught:
        RedisWatch(overflow, Recorder(), RedisSettings()).start()
    assert isinstance(caught.value, OverflowFailure), "so the process ends with status 1 and these words"
    RedisWatch(overflow, Recorder(), RedisSettings(allow_eviction=True)).start()
    [finding] = inspect(overflow.client, allow_eviction=True)
    assert finding.severity is Severity.WARNING
    assert "throws held records away" in finding.message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"maxmemory_policy": "noeviction"}, ()),
        ({"maxmemory_policy": "volatile-lru"}, ("Idempotency-Key",)),
        ({"maxmemory_policy": "volatile-ttl"}, ("Idempotency-Key",)),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "0"}, ("with maxmemory set", "maxmemory is not set")),
    ],
)
def test_a_server_that_keeps_what_is_held_is_taken(
    overflow: RedisOverflow, settings: dict[str, str], words: tuple[str, ...]
) -> None:
    configure(overflow, **settings)
    RedisWatch(overflow, Recorder(), RedisSettings()).start()
    findings = inspect(overflow.client)
    assert [finding.severity for finding in findings] == [Severity.WARNING] * len(words)
    assert all(word in finding.message for word, finding in zip(words, findings, strict=True))


def test_it_is_known_without_the_right_to_ask_for_settings(valkey: EmbeddedValkey, overflow: RedisOverflow) -> None:
    configure(overflow, maxmemory_policy="allkeys-lru")
    overflow.client.acl_setuser("guest", enabled=True, nopass=True, commands=["+info"])
    guest = open_overflow(valkey.url, "g", {"username": "guest", "password": "any"})
    with pytest.raises(NoPermissionError):
        guest.client.config_get("maxmemory-policy")
    with pytest.raises(EvictionRefused):
        RedisWatch(guest, Recorder(), RedisSettings()).start()
    guest.close()


class Managed:
    """A server that tells little: what INFO lacks, and CONFIG may have."""

    def __init__(self, policy: str | None) -> None:
        self._policy = policy

    def info(self) -> dict[str, Any]:
        return {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory": 1 << 30}

    def config_get(self, name: str) -> dict[str, str]:
        if self._policy is None:
            raise ResponseError("unknown command 'CONFIG'")
        return {name: self._policy}


def test_a_server_that_does_not_tell_is_taken_and_said_so() -> None:
    [finding] = inspect(Managed(None))
    assert finding.severity is Severity.WARNING
    assert "is not told" in finding.message
    [finding] = inspect(Managed("allkeys-lfu"))
    assert finding.severity is Severity.ERROR
    assert evicting_policy({"maxmemory_policy": "allkeys-lru"}) == "allkeys-lru", "a limit that isn't told is one"


def test_a_change_of_the_policy_is_a_problem_until_it_is_taken_back(
    overflow: RedisOverflow, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, problems = Recorder(), [""]
    watch = RedisWatch(overflow, recorder, RedisSettings())
    watch.start()
    watch.look(problems.append)
    assert (problems[-1], metrics(recorder)["tickover_redis_evicting"]) == ("", 0)
    configure(overflow, maxmemory_policy="allkeys-lru")
    for _ in range(3):
        watch.look(problems.append)
        assert "maxmemory-policy of Redis is allkeys-lru" in problems[-1]
        assert metrics(recorder)["tickover_redis_evicting"] == 1
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "Redis may evict held records"
    ]
    configure(overflow, maxmemory_policy="noeviction")
    watch.look(problems.append)
    assert (problems[-1], metrics(recorder)["tickover_redis_evicting"]) == ("", 0)


def test_where_it_is_allowed_nothing_is_a_problem_but_what_was_evicted_is_said(
    overflow: RedisOverflow, caplog: pytest.LogCaptureFixture
) -> None:
    recorder, problems = Recorder(), [""]
    watch = RedisWatch(overflow, recorder, RedisSettings(allow_eviction=True))
    watch.start()
    fill_until(overflow, lambda: int(overflow.client.info("stats")["evicted_keys"]) > 0)
    evicted = int(overflow.client.info("stats")["evicted_keys"])
    watch.look(problems.append)
    watch.look(problems.append)
    assert problems == ["", "", ""]
    found = metrics(recorder)
    assert (found["tickover_redis_evicting"], found["tickover_redis_evicted_keys_total"]) == (0, evicted)
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "Redis has evicted keys"
    ]


def fill_until(overflow: RedisOverflow, is_so: Callable[[], bool]) -> None:
    """Somebody else fills a server that evicts, until something comes of it."""
    client = overflow.client
    used = int(client.info("memory")["used_memory"])
    configure(overflow, maxmemory_policy="allkeys-random", maxmemory=str(used + 100_000))
    for _ in range(WRITES_MAX):
        client.set(uuid4().hex, b"v" * 5_000)
        if is_so():
            return
    raise AssertionError("it never did")


def test_what_a_server_evicts_is_missed(overflow: RedisOverflow) -> None:
    records = [held(offset, 2 * HOUR_MS + offset) for offset in range(100)]
    overflow.apply([Change(LANE, 1, records)], NOW_MS)
    keys = set(LaneKeys("g", LANE).fixed)

    def has_evicted() -> bool:
        return bool(overflow.client.exists(*keys) < len(keys))

    fill_until(overflow, has_evicted)
    configure(overflow, maxmemory_policy="noeviction", maxmemory="0")
    with pytest.raises(OverflowLoss):
        overflow.promote(LANE, START, at(9 * HOUR_MS), 1_000, 1)
