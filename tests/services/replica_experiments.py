"""Experiments on three reference brokers and three real ones alike while a follower hangs, as tests can make it: who
waits for it, who is told what when it is given up, when the leader moves, and when it goes on.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from broker.protocol.api_keys import ApiKey
from broker.records.records import Producer
from tests.services.broker_experiments import LONG_MS, now, waited
from tests.services.broker_experiments import SHORT_MS as WAIT_MS
from tests.services.cluster_experiments import SETTLED_S, Experiment, Scene
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until
from tests.services.waiting_experiments import PARKED_S, Parked

LAG_MS: Final = 4_000  # replica.lag.time.max.ms of both: a follower that hangs is given up after up to 6 s
SESSION_MS: Final = 20_000  # and only after this the broker that it belongs to
GIVEN_UP_MS: Final = 9_000
PRODUCER: Final = 4711


@contextmanager
def hung(scene: Scene, number: int, *topics: str) -> Iterator[None]:
    """Until the end of this a broker follows nobody; then until it is in sync in these topics again."""
    scene.cluster.pause(number)
    try:
        yield
    finally:
        scene.cluster.resume(number)
    for topic in topics:
        replicas = sorted(scene.partition(1, topic)[2])
        scene.wait_for(1, topic, isr=replicas)


class Waiting:
    """A produce request that waits, at a connection of its own."""

    def __init__(self, client: RawClient, topic: str, timeout_ms: int = LONG_MS) -> None:
        self.client = client
        partition = {"index": 0, "records": bytes(now())}
        topics = [{"name": topic, "partition_data": [partition]}]
        client.send(ApiKey.PRODUCE, 10, transactional_id=None, acks=-1, timeout=timeout_ms, topic_data=topics)

    @property
    def waits(self) -> bool:
        return self.client.is_silent(PARKED_S)

    def outcome(self) -> tuple[int, int, int]:
        """Code, offset, and the leader if another is told."""
        [topic] = self.client.receive(ApiKey.PRODUCE, 10).responses
        [row] = topic.partition_responses
        leader = row.current_leader
        return int(row.error_code), row.base_offset, -1 if leader is None else leader.leader_id


def connected(scene: Scene, stack: ExitStack, number: int = 1) -> RawClient:
    return stack.enter_context(RawClient(scene.addresses[number - 1]))


def delete(scene: Scene, topic: str, offset: int, timeout_ms: int) -> tuple[int, int]:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = scene.ask(1, ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=timeout_ms)
    [found] = answer.topics[0].partitions
    return int(found.error_code), found.low_watermark


def who_waits_for_a_follower(scene: Scene) -> Any:
    """acks=-1 until its time is over, with the offset it has; consumers, who see nothing of it yet."""
    topic = scene.create([1, 2], min_insync_replicas=1)
    with ExitStack() as stack:
        client = connected(scene, stack)
        with hung(scene, 2, topic):
            late = waited(lambda: scene.produce(1, topic, timeout_ms=WAIT_MS)[0])
            no_time = scene.produce(1, topic, timeout_ms=0)[0]
            records = now(producer=Producer(PRODUCER, 0, 0))
            twice = [client.produce(topic, records, timeout_ms=WAIT_MS) for _ in range(2)]
            is_same = twice[0].base_offset == twice[1].base_offset > 0
            end = twice[0].base_offset + 1
            seen = (
                waited(lambda: scene.fetch(1, topic, max_wait_ms=WAIT_MS)),
                scene.fetch(1, topic, 1, max_wait_ms=LONG_MS),
                scene.fetch(1, topic, end + 1, max_wait_ms=LONG_MS),
            )
            acked = Waiting(connected(scene, stack), topic)
            consumer = Parked(connected(scene, stack), topic, 0)
            waits = acked.waits, consumer.waits
        code, _, _, size = consumer.outcome()
        then = acked.outcome()[0], code, size > 0
        wait_until(lambda: scene.fetch(1, topic)[1] == end + 1, SETTLED_S, lambda: str(scene.fetch(1, topic)))
        return late, no_time, [int(one.error_code) for one in twice], is_same, seen, waits, then


def a_follower_is_given_up(scene: Scene) -> Any:
    """Where enough others are in sync, acks=-1 is answered then; else at its end, and the next ones are refused."""
    loose, strict = scene.create([1, 2, 3], min_insync_replicas=2), scene.create([1, 2, 3], min_insync_replicas=3)
    with ExitStack() as stack:
        with hung(scene, 3, loose, strict):
            enough = Waiting(connected(scene, stack), loose)
            too_few = Waiting(connected(scene, stack), strict, GIVEN_UP_MS)
            waits = enough.waits, too_few.waits
            answered = enough.outcome()
            for topic in (loose, strict):
                scene.wait_for(1, topic, isr=[1, 2])
            still_waits = too_few.waits
            sent_away = preferred(scene, loose, "rack-3"), preferred(scene, loose, "rack-2")
            refused = too_few.outcome(), scene.produce(1, strict), scene.produce(1, strict, acks=1)
            seen = scene.fetch(1, strict)
        wait_until(lambda: scene.fetch(1, strict)[1] == 2, SETTLED_S, lambda: str(scene.fetch(1, strict)))
        return waits, answered, still_waits, sent_away, refused, seen, scene.produce(1, strict)


def a_leader_moves_under_waits(scene: Scene) -> Any:
    """A request that waits for what a former leader can't give is told so, by what it says of leaders and epochs."""
    topic = scene.create([1, 2, 3], min_insync_replicas=1)
    produced = scene.produce(1, topic)
    for number in (1, 2, 3):
        wait_until(lambda number=number: scene.fetch(number, topic)[1] == 1, SETTLED_S)  # type: ignore[misc]
    with ExitStack() as stack:
        with hung(scene, 3, topic):
            acked = Waiting(connected(scene, stack), topic)
            clients = [connected(scene, stack) for _ in range(3)]
            old = Parked(clients[0], topic, 1, version=10)
            with_epoch = Parked(clients[1], topic, 1, current_leader_epoch=scene.partition(1, topic)[1])
            without = Parked(clients[2], topic, 1, max_wait_ms=1_500)
            waits = [one.waits for one in (acked, old, with_epoch, without)]
            moved = scene.move([2, 1, 3], topic), scene.elect(topic)
            told = acked.outcome(), old.outcome()[0], with_epoch.outcome()[0], without.outcome()[0]
        scene.wait_for(1, topic, leader=2)
        wait_until(lambda: scene.produce(2, topic)[0] == 0, SETTLED_S, lambda: str(scene.produce(2, topic)))
        scene.produce(2, topic)
        histories = [history(scene, topic, *where) for where in ((0, 1), (0, 2), (0, 3), (9, 1))]
        return produced, waits, moved, told, histories


def history(scene: Scene, topic: str, epoch: int, offset: int) -> Any:
    """Where a reader is told that its history and the leader's part."""
    with RawClient(scene.addresses[1]) as client:
        row = client.fetch(topic, offset, last_fetched_epoch=epoch, max_wait_ms=LONG_MS)
    diverging = row.diverging_epoch
    told = None if diverging is None else (diverging.epoch, diverging.end_offset)
    return int(row.error_code), told, bool(row.records)


def deleting_waits_for_followers(scene: Scene) -> Any:
    topic = scene.create([1, 2, 3])
    for _ in range(2):
        scene.produce(1, topic)
    healthy = delete(scene, topic, 1, 60_000)
    with hung(scene, 3, topic):
        late = delete(scene, topic, 2, 500)
        seen = scene.fetch(1, topic, 1)
    return healthy, late, seen, delete(scene, topic, 2, 60_000)


def in_a_followers_name(scene: Scene) -> Any:
    """A client that fetches as a follower is taken for it: it sees all, and has all below the offset it asks for."""
    topic = scene.create([1, 3], min_insync_replicas=1)
    with ExitStack() as stack:
        with hung(scene, 3, topic):
            acked = Waiting(connected(scene, stack), topic)
            waits, seen = acked.waits, scene.fetch(1, topic)
            as_follower = scene.fetch(1, topic, replica_id=3)
            still_waits = acked.waits
            caught_up = scene.fetch(1, topic, 1, replica_id=3)[0]
            told = acked.outcome(), scene.fetch(1, topic)
            strangers = [
                scene.fetch(1, topic, replica_id=number, **more)[0]
                for number in (2, 9)
                for more in ({}, {"current_leader_epoch": 0})
            ]
        return waits, seen, as_follower[0], as_follower[2], still_waits, caught_up, told, strangers


def who_lacks_the_high_watermark(scene: Scene) -> Any:
    """A follower's fetch that waits is not answered because the high watermark alone has moved, nor is the next one of
    a follower that has never been told of it: records end the wait, and tell it."""
    topic = scene.create([1, 2, 3], min_insync_replicas=1)
    with ExitStack() as stack, hung(scene, 3, topic), hung(scene, 2):
        produced = scene.produce(1, topic, acks=1)
        first = Parked(connected(scene, stack), topic, 1, replica_id=2)
        waits = [first.waits]
        other = scene.fetch(1, topic, 1, replica_id=3)  # now both have the record
        seen = scene.fetch(1, topic)
        waits.append(first.waits)
        second = Parked(connected(scene, stack), topic, 1, replica_id=2)
        waits.append(second.waits)
        scene.produce(1, topic, acks=1)
        told = first.outcome(), second.outcome()
    return produced, other, seen, waits, told


def throttle(scene: Scene, number: int, rate: int | None) -> int:
    """How many bytes of throttled replicas a broker may send in a second; None: as many as it can."""
    name = "leader.replication.throttled.rate"
    change = {"name": name, "config_operation": 1 if rate is None else 0, "value": None if rate is None else str(rate)}
    resource = {"resource_type": 4, "resource_name": str(number), "configs": [change]}
    body = {"resources": [resource], "validate_only": False}
    [answer] = scene.ask(number, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, **body).responses
    return int(answer.error_code)


def who_is_held_back_by_a_quota(scene: Scene) -> Any:
    """A quota holds back fetches in the name of a follower out of sync; not of one in sync, and not of consumers."""
    topic = scene.create([1, 2, 3], min_insync_replicas=1)
    names = "leader_replication_throttled_replicas"
    refused = scene.try_to_create(f"{topic}-refused", [1], **{names: "0"})
    throttled = scene.create([1, 2, 3], min_insync_replicas=1, **{names: "0:1"})
    with hung(scene, 3, topic, throttled):
        for one in (topic, throttled):
            scene.produce(1, one, acks=1)
        for one in (topic, throttled):
            scene.wait_for(1, one, isr=[1, 2])
        before = scene.fetch(1, throttled, replica_id=3)[2] > 0
        codes = [throttle(scene, 1, 1)]
        for one in (topic, throttled):
            scene.produce(1, one)  # broker 2 fetches it, and that counts
        wait_until(lambda: scene.fetch(1, throttled, replica_id=3)[2] == 0, SETTLED_S, lambda: "it isn't held back")
        seen = [[scene.fetch(1, one, replica_id=who)[2] > 0 for who in (3, 2, -1)] for one in (topic, throttled)]
        codes.append(throttle(scene, 1, None))
        wait_until(lambda: scene.fetch(1, throttled, replica_id=3)[2] > 0, SETTLED_S, lambda: "it is held back")
    return refused, before, codes, seen


def preferred(scene: Scene, topic: str, rack: str) -> tuple[int, int, bool]:
    with RawClient(scene.addresses[0]) as client:
        row = client.fetch(topic, 0, rack_id=rack, max_wait_ms=LONG_MS)
    return int(row.error_code), row.preferred_read_replica, bool(row.records)


def readers_are_sent_to_their_rack(scene: Scene) -> Any:
    topic = scene.create([1, 2])
    scene.produce(1, topic)
    wait_until(lambda: scene.fetch(2, topic)[1] == 1, SETTLED_S, lambda: str(scene.fetch(2, topic)))
    return [preferred(scene, topic, rack) for rack in ("rack-2", "rack-1", "rack-3", "")], scene.fetch(2, topic)


def what_only_a_killed_leader_had(scene: Scene) -> Any:
    """A record that was acknowledged to acks=1 only is gone when its leader comes back."""
    topic = scene.create([1, 2], min_insync_replicas=1)
    produced = scene.produce(1, topic)
    scene.cluster.pause(2)
    scene.fetch(1, topic, 1, max_wait_ms=1_000)  # a fetch of the follower that waits would be answered with the record
    lost = scene.produce(1, topic, acks=1)
    scene.cluster.nodes[0].kill()
    scene.cluster.resume(2)
    scene.wait_for(2, topic, leader=2)
    wait_until(lambda: scene.fetch(2, topic)[:2] == (0, 1), SETTLED_S, lambda: str(scene.fetch(2, topic)))
    scene.cluster.nodes[0].start()
    scene.wait_for(2, topic, isr=[1, 2])
    beyond = scene.fetch(2, topic, 2)[0]
    next_one = scene.produce(2, topic)
    wait_until(lambda: scene.fetch(1, topic)[1] == 2, SETTLED_S, lambda: str(scene.fetch(1, topic)))
    return produced, lost, beyond, next_one, [scene.fetch(number, topic) for number in (1, 2)]


EXPERIMENTS: Final[dict[str, Experiment]] = {
    one.__name__: one
    for one in (
        who_waits_for_a_follower,
        a_follower_is_given_up,
        a_leader_moves_under_waits,
        deleting_waits_for_followers,
        in_a_followers_name,
        who_lacks_the_high_watermark,
        who_is_held_back_by_a_quota,
        readers_are_sent_to_their_rack,
        what_only_a_killed_leader_had,
    )
}
# A broker that was killed is missed after its session's time; followers hang, are given up and are waited for.
LONG: Final = ("what_only_a_killed_leader_had", "who_lacks_the_high_watermark", "who_is_held_back_by_a_quota")
