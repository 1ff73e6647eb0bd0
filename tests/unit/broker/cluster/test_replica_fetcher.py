"""A follower's fetcher beside a leader that answers at once: it makes headway or waits, and others have their turn."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from broker.cluster.replica_fetcher import ReplicaFetcher
from broker.cluster.settings import BrokerSettings
from broker.log.config import LogConfig
from broker.log.manager import LogManager
from purgatory.partition.partition import Partition
from purgatory.replica_manager.fetch_reading import ReadResults
from purgatory.replica_manager.partition_reader import NoQuota
from purgatory.replica_manager.replica_manager import ReplicaManager
from tests.unit.log_world import NOW_MS, batch
from tests.unit.replica_world import KEY, Brokers, World, assignment

FETCHES_MAX: Final = 50
EPOCH: Final = 2


async def wait_turn() -> None:
    """Until everybody else in the event loop had a turn."""
    await asyncio.sleep(0)


class AskedLeader:
    """Broker 1, which counts what it is asked. Beyond FETCHES_MAX it never answers, so that no test runs for ever."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.replicas = replicas
        self.fetches = 0

    async def answer_of(self, start: Callable[[Callable[[ReadResults], None]], None]) -> ReadResults:
        self.fetches += 1
        answer: asyncio.Future[ReadResults] = asyncio.get_running_loop().create_future()
        if self.fetches <= FETCHES_MAX:
            start(answer.set_result)
        return await answer


class Pair:
    """Broker 1 leads in epoch EPOCH, broker 2 is about to follow. The leader has so many batches of epoch 0, the
    follower the first of them."""

    def __init__(self, directory: Path, batches: int = 1, **settings: int) -> None:
        self.leader = AskedLeader(World().manager)
        self.follower = World().manager
        self.follower.broker_id = 2
        self.led, _ = self._host(self.leader.replicas, directory / "1", batches)
        self.followed, logs = self._host(self.follower, directory / "2", 1)
        known = BrokerSettings(**settings)  # type: ignore[arg-type]
        self.fetcher = ReplicaFetcher(self.follower, logs, known, lambda _: self.leader, lambda: None, NoQuota())

    @staticmethod
    def _host(manager: ReplicaManager, directory: Path, batches: int) -> tuple[Partition, LogManager]:
        logs = LogManager(directory, lambda: NOW_MS)
        partition = Partition(KEY, manager.broker_id, logs.open(KEY, LogConfig()).replica, Brokers())
        for _ in range(batches):
            partition.log.append_as_leader(batch(b"value"), 0)
        manager.host(partition)
        return partition, logs

    def begin(self) -> None:
        """To be called in an event loop."""
        for manager in (self.leader.replicas, self.follower):
            manager.become(KEY, assignment(epoch=EPOCH, replicas=(1, 2)))
        self.fetcher.follow(KEY, 1)

    def follow_for(self, turns: int) -> list[int]:
        """How often the leader was asked in each turn of the event loop."""

        async def run() -> list[int]:
            self.begin()
            asked = []
            for _ in range(turns):
                before = self.leader.fetches
                await wait_turn()
                asked.append(self.leader.fetches - before)
            self.fetcher.stop()
            return asked

        return asyncio.run(run())


def epochs(partition: Partition) -> list[tuple[int, int]]:
    return partition.log.epochs.entries


def test_a_follower_forgets_an_epoch_at_its_log_end_that_the_new_leader_lacks(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.followed.log.epochs.assign(1, 1)  # it led, and wrote nothing
    pair.follow_for(turns=10)
    assert epochs(pair.led) == [(0, 0), (EPOCH, 1)]
    assert epochs(pair.followed) == [(0, 0)]
    assert pair.leader.fetches == 2  # it was told once, then it waits for records
    assert pair.leader.replicas.fetch.num_delayed == 1


def test_an_error_that_changes_nothing_is_not_asked_for_again_at_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.followed.log.epochs.assign(EPOCH + 1, 0)  # its leader has never heard of that
    pair.follow_for(turns=10)
    assert pair.leader.fetches == 1


@pytest.mark.parametrize("waits_ms", [0, 500])
def test_a_follower_that_is_answered_at_once_asks_once_in_a_turn_of_the_event_loop(
    tmp_path: Path, waits_ms: int
) -> None:
    one_batch = len(batch(b"value"))
    pair = Pair(tmp_path, 20, replica_fetch_max_bytes=one_batch, replica_fetch_wait_max_ms=waits_ms)
    assert max(pair.follow_for(turns=10)) == 1
    assert pair.followed.log.log_end_offset > 5
