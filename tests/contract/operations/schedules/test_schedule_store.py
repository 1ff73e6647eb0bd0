"""The schedule store, several on one topic as replicas: on the client's mock cluster and on real Kafka."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from sidecar.kafka.topic_follower import TopicReader
from sidecar.operations.schedules.schedule import ScheduleConflict, SchedulesUnavailable
from sidecar.operations.schedules.store import ScheduleStore
from sidecar.service.operations.schedules import schedule_store_of
from sidecar.settings.settings import Settings
from tests.services.waiting import wait_until
from tests.unit.schedule_world import schedule

pytestmark = pytest.mark.slow

WAIT_S = 60.0

NewReplica = Callable[[], ScheduleStore]


@pytest.fixture
def new_replica(kafka_place: tuple[str, str]) -> Iterator[NewReplica]:
    """Makes stores of one group on one topic; they end with the test."""
    bootstrap, topic = kafka_place
    settings = Settings.model_validate({"group": f"g-{uuid4().hex[:8]}", "schedules": {"topic": topic}})
    made: list[ScheduleStore] = []
    Producer({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=WAIT_S)  # the mock makes it when it is asked

    def new() -> ScheduleStore:
        store = schedule_store_of(settings, TopicReader({"bootstrap.servers": bootstrap, "log_level": "0"}))
        made.append(store)
        store.start()
        return store

    yield new
    for store in made:
        store.stop()


@contextmanager
def conflict(version: int) -> Iterator[None]:
    with pytest.raises(ScheduleConflict) as caught:
        yield
    assert caught.value.version == version


def test_what_one_writes_every_replica_reads_and_later_ones_too(new_replica: NewReplica) -> None:
    first, second = new_replica(), new_replica()
    written = first.put(schedule(value="täglich"), "reminders", 0, "me")
    assert first.get("tick").entry == written
    wait_until(lambda: second.get("tick").entry == written, WAIT_S)
    with conflict(1):
        second.put(schedule(), "reminders", 0, "you")
    replaced = second.put(schedule(value="neu"), "reminders", 1, "you")
    assert replaced.version == 2
    first.delete("tick", 2, "me")
    with conflict(0):
        second.delete("tick", 2, "you")
    assert second.put(schedule(), "reminders", 0, "you").version == 4
    late = new_replica()
    late.catch_up()
    assert late.get("tick") == second.get("tick")


@pytest.mark.parametrize("kafka_place", [pytest.param("real", marks=pytest.mark.integration)], indirect=True)
def test_of_replicas_that_write_at_once_exactly_one_wins(kafka_place: tuple[str, str], new_replica: NewReplica) -> None:
    """Each with what it takes for the version; who is fenced too often is told so. The mock fences nobody."""
    stores = [new_replica() for _ in range(3)]
    won: list[int] = []

    def write(number: int) -> None:
        try:
            won.append(stores[number].put(schedule(value=str(number)), "reminders", len(won), "me").version)
        except (ScheduleConflict, SchedulesUnavailable):
            return

    for _ in range(2):
        before = len(won)
        while len(won) == before:  # on a busy machine each of them may be fenced too often
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(write, range(3)))
        stores[0].catch_up()
        assert won == list(range(1, len(won) + 1))  # no version twice: nobody's write is lost
        assert stores[0].get("tick").version == len(won)
