"""The pauses of several replicas on one topic: on the client's mock cluster and on real Kafka."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from sidecar.model.condition import Pausable, Pause, PauseKind, Switch, Switches
from sidecar.operations.pauses.store import PauseStore
from sidecar.service.kafka_start import open_pauses
from sidecar.settings.settings import Settings
from tests.services.waiting import wait_until

pytestmark = pytest.mark.slow

WAIT_S = 60.0
MAIL = Pausable(PauseKind.TARGET, "mail")
PAUSE = Pause("a release", "me", 5)

NewReplica = Callable[[], PauseStore]


@pytest.fixture
def new_replica(kafka_place: tuple[str, str]) -> Iterator[NewReplica]:
    """Opens pauses of one group as processes do at their start; they end with the test."""
    bootstrap, topic = kafka_place
    settings = Settings.model_validate({"group": f"g-{uuid4().hex[:8]}", "pauses": {"topic": topic}})
    made: list[PauseStore] = []
    Producer({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=WAIT_S)  # the mock makes it when it is asked

    def new() -> PauseStore:
        _, store = open_pauses(settings, {"bootstrap.servers": bootstrap, "log_level": "0"})
        made.append(store)
        return store

    yield new
    for store in made:
        store.stop()


def test_every_replica_hears_of_a_pause_and_a_new_one_knows_it_at_once(new_replica: NewReplica) -> None:
    first, second = new_replica(), new_replica()
    first.put(MAIL, PAUSE)
    assert first.alive() == {MAIL: PAUSE}
    wait_until(lambda: second.alive() == {MAIL: PAUSE}, WAIT_S)
    assert new_replica().alive() == {MAIL: PAUSE}
    assert second.remove(MAIL)
    wait_until(lambda: not first.all(), WAIT_S)
    assert not new_replica().all()


def test_every_replica_hears_of_a_breaker_that_was_switched(new_replica: NewReplica) -> None:
    first, second = new_replica(), new_replica()
    told = list[Switches]()
    second.on_switch(told.append)
    first.switch_breaker("mail", Switch(True, 5), "me")
    wait_until(lambda: told[-1] == {"mail": Switch(True, 5)}, WAIT_S)
    first.switch_breaker("mail", Switch(False, 6), "me")
    wait_until(lambda: told[-1] == {"mail": Switch(False, 6)}, WAIT_S)
    assert not second.all()
