"""Throttled replication: the rate, what topics and brokers say of it, and who is held back."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from broker.cluster.replication_quota import FOLLOWER_RATE, LEADER_RATE, ReplicationQuota
from broker.cluster.topic_config import LEADER_THROTTLED, check_config, throttled_partitions
from broker.protocol.api_keys import ApiKey
from broker.server.cluster import Cluster
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker
from tests.services.waiting import wait_until
from tests.unit.log_world import batch
from tests.unit.purgatory_tasks import Clock

KEY: Final = TopicPartition("topic", 0)
WAIT_S: Final = 60.0
SET, DELETE = 0, 1


def quota_of(limit: int | None) -> tuple[ReplicationQuota, Clock]:
    clock = Clock(1_000_000)
    quota = ReplicationQuota(clock, lambda: limit)
    quota.throttle("topic", None)
    return quota, clock


def test_the_rate_is_that_of_the_last_windows_and_of_a_whole_one_at_least() -> None:
    quota, clock = quota_of(100)
    quota.record(KEY, 50)
    quota.record(KEY, 50)
    assert (quota.rate(), quota.is_quota_exceeded()) == (100, False)
    quota.record(KEY, 1)
    assert quota.is_quota_exceeded()
    clock.now_ms += 2_000
    assert (quota.rate(), quota.is_quota_exceeded()) == (50.5, False)
    clock.now_ms += 8_000
    quota.record(KEY, 2_000)
    assert quota.rate() == pytest.approx(210.1)
    clock.now_ms += 1_000  # the first window is too old by now
    assert quota.rate() == 2_000
    clock.now_ms += 11_000
    assert quota.rate() == 0


def test_without_a_limit_nothing_is_too_much() -> None:
    quota, _ = quota_of(None)
    quota.record(KEY, 1 << 40)
    assert not quota.is_quota_exceeded()


def test_a_topic_is_throttled_as_its_settings_say() -> None:
    quota, _ = quota_of(0)
    other = TopicPartition("topic", 1)
    assert quota.is_throttled(KEY)
    quota.throttle("topic", frozenset({1}))
    assert (quota.is_throttled(KEY), quota.is_throttled(other)) == (False, True)
    quota.throttle("topic", frozenset())
    assert not quota.is_throttled(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("*", None), (" * ", None), ("", set()), ("0:1", {0}), ("0:2", set()), ("0:1, 3:1,4:11,5:2", {0, 3})],
)
def test_which_partitions_a_setting_names(text: str, expected: set[int] | None) -> None:
    found = throttled_partitions(check_config({LEADER_THROTTLED: text}), LEADER_THROTTLED, 1)
    assert found == (None if expected is None else frozenset(expected))


@pytest.mark.parametrize("text", ["0", "0:1:2", "a:b", "0:1,*", "-1:1", ":"])
def test_a_setting_that_names_no_replicas_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_config({LEADER_THROTTLED: text})
    assert refused.value.error is Errors.INVALID_CONFIG


class World:
    """Three brokers; broker 1 leads the only partition of a topic, whose replicas at all are throttled."""

    def __init__(self, directory: Path) -> None:
        self.cluster = ReferenceBroker(directory, 3, replica_fetch_max_bytes=1).start()
        names = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
        row = {"partition_index": 0, "broker_ids": [1, 2, 3]}
        topic = {
            "name": "topic",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [row],
            "configs": [{"name": name, "value": "*"} for name in names],
        }
        with RawClient(self.cluster.bootstrap) as client:
            [answer] = client.ask(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout=60_000).topics
        assert answer.error_code == Errors.NONE, answer

    def change(self, broker: str, *changes: tuple[str, int, str | None]) -> int:
        configs = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
        resource = {"resource_type": 4, "resource_name": broker, "configs": configs}
        with RawClient(self.cluster.bootstrap) as client:
            [answer] = client.ask(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
            ).responses
        return int(answer.error_code)

    def told(self, name: str) -> tuple[str, int]:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": [name]}
        with RawClient(self.cluster.bootstrap) as client:
            [answer] = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource]).results
        [config] = answer.configs
        return config.value, config.config_source

    def produce(self, acks: int = -1) -> int:
        with RawClient(self.cluster.bootstrap) as client:
            return int(client.produce("topic", batch(bytes(1_000)), acks=acks).error_code)

    def fetch(self, **more: Any) -> int:
        """How much there is for who asks, in bytes."""
        with RawClient(self.cluster.bootstrap) as client:
            return len(client.fetch("topic", 0, **more).records or b"")

    def end_at(self, broker_id: int) -> int:
        def look(cluster: Cluster) -> int:
            return cluster.brokers[broker_id].replicas.partitions[KEY].log.log_end_offset

        found: int = self.cluster.inspect(look)
        return found

    def isr(self) -> set[int]:
        return set(self.cluster.inspect(lambda one: one.metadata.partition(KEY).isr))

    def run(self, work: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        self.cluster.run(work(self.cluster.cluster))

    def wait_for_isr(self, *isr: int) -> None:
        wait_until(lambda: self.isr() == set(isr), WAIT_S, lambda: f"the ISR isn't {isr}")


@pytest.fixture
def world(tmp_path: Path) -> Any:
    world = World(tmp_path)
    yield world
    world.cluster.stop()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [LEADER_RATE, FOLLOWER_RATE])
def test_a_follower_in_sync_reads_over_the_quota_and_one_out_of_it_waits(
    world: World, rate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cluster.replication_quota.WINDOWS", 1_000_000)  # what came once counts throughout
    world.wait_for_isr(1, 2, 3)
    assert world.produce() == Errors.NONE
    wait_until(lambda: world.end_at(3) == 1, WAIT_S)
    world.run(lambda cluster: cluster.stop_broker(3))
    throttler = "1" if rate == LEADER_RATE else ""  # all brokers, broker 2 too
    assert world.change(throttler, (rate, SET, "0")) == Errors.NONE
    for _ in range(2):
        assert world.produce() == Errors.NONE
    world.run(lambda cluster: cluster.start_broker(3))
    for _ in range(2):  # not to all: who was in sync a moment ago is waited for
        assert world.produce(acks=1) == Errors.NONE
    wait_until(lambda: world.end_at(2) == 5, WAIT_S)
    # Before it is exceeded a limit of nothing lets one fetch through, which is one record here.
    assert world.end_at(3) < 5
    assert world.isr() == {1, 2}
    assert world.fetch() > 3_000, "consumers are not held back"
    if rate == LEADER_RATE:
        assert [world.fetch(replica_id=number) > 0 for number in (2, 3)] == [True, False]
    assert world.change(throttler, (rate, DELETE, None)) == Errors.NONE
    world.wait_for_isr(1, 2, 3)
    assert world.end_at(3) == 5


@pytest.mark.slow
def test_rates_are_set_taken_back_told_and_kept(world: World) -> None:
    most = str((1 << 63) - 1)
    assert world.told(LEADER_RATE) == (most, 5)
    assert world.change("", (LEADER_RATE, SET, "7")) == Errors.NONE
    assert world.change("1", (LEADER_RATE, SET, "8"), (FOLLOWER_RATE, SET, "9")) == Errors.NONE
    assert [world.told(name) for name in (LEADER_RATE, FOLLOWER_RATE)] == [("8", 2), ("9", 2)]
    world.cluster.stop()
    world.cluster.start()
    assert world.told(LEADER_RATE) == ("8", 2)
    assert world.change("1", (LEADER_RATE, DELETE, None)) == Errors.NONE
    assert world.told(LEADER_RATE)[0] == "7"
    assert world.change("9", (LEADER_RATE, SET, "1")) == Errors.INVALID_REQUEST
    assert world.change("1", (LEADER_RATE, SET, "-1")) == Errors.INVALID_CONFIG
    assert world.change("1", ("num.partitions", SET, "1")) == Errors.INVALID_REQUEST
