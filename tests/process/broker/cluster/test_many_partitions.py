"""Many partitions: others have their turn meanwhile, and one more disturbs few."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from broker.cluster.replica_fetcher import GROUP_PARTITIONS_MAX, ReplicaFetcher
from broker.cluster.settings import BrokerSettings
from broker.log.manager import LogManager
from broker.protocol.api_keys import ApiKey
from broker.protocol.request import Request, read_frame
from broker.requests.handlers import HANDLERS
from broker.server.cluster import Cluster
from broker.server.serving import GARBAGE_PARTITIONS_MAX, collect_garbage, keep_collections_short
from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.fetch_reading import ReadResults
from purgatory.replica_manager.partition_reader import NoQuota
from tests.services.raw_client import RawClient, encode
from tests.services.reference_broker import ReferenceBroker
from tests.unit.replica_world import World, assignment, new_partition

TOPICS: Final = 30


async def wait_turn() -> None:
    """Until everybody else in the event loop had a turn."""
    await asyncio.sleep(0)


async def turns_meanwhile(work: Coroutine[Any, Any, Any]) -> int:
    """How many turns others have in the event loop until this is done."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await wait_turn()
            turns += 1

    task = asyncio.create_task(others())
    await work
    task.cancel()
    return turns


def request(api_key: ApiKey, version: int, **body: Any) -> Request:
    header, read = read_frame(bytearray(encode(api_key, version, body)[4:]))
    return Request(header, read)


def test_another_client_is_answered_while_many_topics_are_made_told_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cluster.broker.TURN_S", 0.0)
    names = [f"topic-{number}" for number in range(TOPICS)]
    topic = {"num_partitions": 4, "replication_factor": 1, "assignments": [], "configs": []}
    requests = [
        request(ApiKey.CREATE_TOPICS, 7, topics=[{"name": name, **topic} for name in names], timeout=60_000),
        request(ApiKey.METADATA, 12, topics=None, allow_auto_topic_creation=False),
        request(ApiKey.METADATA, 12, topics=[{"name": name} for name in names], allow_auto_topic_creation=False),
        request(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": name, "count": 5, "assignments": None} for name in names],
            timeout=60_000,
        ),
        request(ApiKey.DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": None} for name in names], timeout=60_000),
    ]

    async def turns(cluster: Cluster) -> list[int]:
        return [
            await turns_meanwhile(HANDLERS[one.header.api_key](cluster.brokers[1], one))  # type: ignore[arg-type]
            for one in requests
        ]

    broker = ReferenceBroker(tmp_path).start()
    try:
        assert min(broker.run(turns(broker.cluster))) >= TOPICS - 1
        with RawClient(broker.bootstrap) as client:
            assert client.ask(ApiKey.METADATA, 12, topics=None).topics == ()
    finally:
        broker.stop()


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that the interpreter has looked through, of this process, whose settings are put back."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    threshold, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.callbacks.append(note)
    yield found
    if not was_enabled:
        gc.disable()
    gc.callbacks.remove(note)
    gc.set_threshold(*threshold)
    gc.unfreeze()


def test_the_program_looks_at_all_it_has_only_while_that_is_little(tmp_path: Path, collections: list[int]) -> None:
    gc.set_threshold(10, 1, 1)
    keep_collections_short()
    collections.clear()
    kept = [[[] for _ in range(100)] for _ in range(1_000)]  # type: ignore[var-annotated]
    assert set(collections) == {0, 1}, len(kept)
    broker = ReferenceBroker(tmp_path).start()
    try:
        for partitions in (GARBAGE_PARTITIONS_MAX, 1):
            collections.clear()
            with RawClient(broker.bootstrap) as client:
                assert client.create_topic(f"topic-{partitions}", partitions).error_code == 0
            broker.inspect(collect_garbage)
            assert (2 in collections) is (partitions > 1)
    finally:
        broker.stop()


class CountedLeader:
    """Broker 1, which keeps what it is asked for and answers nothing."""

    def __init__(self) -> None:
        self.replicas: Any = self
        self.asked: list[int] = []

    def fetch_messages(
        self, _: FetchParams, wanted: Sequence[tuple[TopicPartition, FetchPartition]], __: Callable[[ReadResults], None]
    ) -> None:
        self.asked.append(len(wanted))

    async def answer_of(self, start: Callable[[Callable[[ReadResults], None]], None]) -> ReadResults:
        start(lambda _: None)
        never: asyncio.Future[ReadResults] = asyncio.get_running_loop().create_future()
        return await never


def test_a_follower_asks_for_so_many_partitions_at_once_and_a_new_one_disturbs_few(tmp_path: Path) -> None:
    world, leader = World(), CountedLeader()
    world.manager.broker_id = 2
    keys = [TopicPartition("topic", number) for number in range(3 * GROUP_PARTITIONS_MAX + 1)]
    for key in keys:
        world.manager.host(new_partition(world.brokers, broker_id=2, key=key))
        world.manager.become(key, assignment(replicas=(1, 2)))
    fetcher = ReplicaFetcher(
        world.manager,
        LogManager(tmp_path, lambda: 0.0),
        BrokerSettings(),
        lambda _: leader,
        lambda: None,
        NoQuota(),
    )

    async def asked(change: Callable[[], None]) -> list[int]:
        leader.asked.clear()
        change()
        await wait_turn()
        await wait_turn()
        return sorted(leader.asked)

    async def scene() -> None:
        def follow_most() -> None:
            for key in keys[:-1]:
                fetcher.follow(key, 1)

        assert await asked(follow_most) == [GROUP_PARTITIONS_MAX] * 3
        assert await asked(lambda: fetcher.follow(keys[-1], 1)) == [1]
        assert await asked(lambda: fetcher.unfollow(keys[0])) == [GROUP_PARTITIONS_MAX - 1]
        assert await asked(lambda: fetcher.follow(keys[1], 3)) == [1, GROUP_PARTITIONS_MAX - 2]
        fetcher.pause()
        assert await asked(fetcher.resume) == [1, 1, GROUP_PARTITIONS_MAX - 2, *[GROUP_PARTITIONS_MAX] * 2]
        assert await asked(fetcher.stop) == []

    asyncio.run(scene())
