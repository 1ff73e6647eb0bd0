"""A consumer that lost its session and can't get back into its group is replaced; on a reference broker told to err."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.protocol.api_keys import ApiKey
from purgatory.errors import Errors
from sidecar.kafka import consumer as kafka_intake
from sidecar.kafka.client_settings import consumer_settings
from sidecar.kafka.consumer import KafkaIntake
from sidecar.model.record import TopicPartition
from tests.services.errant_broker import SILENCE, ErrantServer
from tests.services.fixtures import own_broker
from tests.services.kafka import Kafka
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: return
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {topic: "~out"}
"""
SOON_S = 120.0
numbers = count(1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ErrantServer]:
    with own_broker(ErrantServer(tmp_path)) as server:
        yield server


def give(server: ErrantServer, key: ApiKey, error: Errors) -> None:
    """Return when this error was answered."""
    number = next(numbers)
    server.errand.want(number, key.name, error)
    wait_until(lambda: server.errand.given == number, SOON_S, lambda: "the error was not given")


def test_a_static_member_that_fenced_itself_goes_on_and_one_that_another_fenced_ends(
    server: ErrantServer, redis_url: str, tmp_path: Path
) -> None:
    """The member's session is lost; it joins, and is then told that its name is another's."""
    site = Site(Kafka(server), redis_url, tmp_path)
    site.policies(POLICIES)
    site.topic("in")
    out = site.target("out")
    # Another session that ends, on a slow machine, would explain the last of these errors, too.
    sidecar = site.sidecar("one", KAFKA__CLIENT__SESSION_TIMEOUT_MS="45000").start()
    try:
        give(server, ApiKey.HEARTBEAT, Errors.UNKNOWN_MEMBER_ID)
        give(server, ApiKey.HEARTBEAT, Errors.FENCED_INSTANCE_ID)
        site.send(site.name("in"))
        site.kafka.read(out, 1, SOON_S)
        assert any("fenced by its own return" in message.get("reason", "") for message in sidecar.messages("warning"))
        give(server, ApiKey.HEARTBEAT, Errors.FENCED_INSTANCE_ID)
        assert sidecar.wait_until_ended() == 1
        assert "fenced" in sidecar.messages("critical")[-1]["error"]
        assert len(site.kafka.read_all(out)) == 1
    finally:
        site.close()


@pytest.fixture
def intake(server: ErrantServer) -> Iterator[KafkaIntake]:
    """Of a static member, subscribed to a topic of one partition. Its group is called as the topic."""
    kafka = Kafka(server)
    group = kafka.topic("return")
    client = {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    intake = KafkaIntake(consumer_settings(client, group, "one"), lambda _: None)
    intake.events = Mock()
    try:
        intake.subscribe([group])
        yield intake
    finally:
        intake.close()


def take_until(intake: KafkaIntake, event: str) -> list[TopicPartition]:
    """The lanes of the next such event, which must come before any other. One call of `take` may bring several."""
    events: Any = intake.events
    wait_until(lambda: bool(events.method_calls or intake.take(1)), SOON_S, lambda: f"never {event}")
    name, (lanes,), _ = events.method_calls.pop(0)
    assert name == event
    return list(lanes)


def test_a_consumer_that_waits_for_nothing_is_replaced(
    server: ErrantServer, intake: KafkaIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers its joining, which the client would wait for during minutes."""
    monkeypatch.setattr(kafka_intake, "REJOIN_S", 3.0)
    lanes = take_until(intake, "assigned")
    give(server, ApiKey.HEARTBEAT, Errors.UNKNOWN_MEMBER_ID)  # it joins when it was told that it lost all: below
    server.errand.want(next(numbers), ApiKey.JOIN_GROUP.name, SILENCE)
    assert take_until(intake, "lost") == lanes
    assert take_until(intake, "lost") == [], "that client is given up"
    assert take_until(intake, "assigned") == lanes


def test_a_consumer_that_is_fenced_after_its_return_has_lost_what_it_was_given_again(
    server: ErrantServer, intake: KafkaIntake
) -> None:
    """The client has no assignment any more by then, and says nothing of it."""
    lanes = take_until(intake, "assigned")
    assert lanes
    give(server, ApiKey.HEARTBEAT, Errors.UNKNOWN_MEMBER_ID)
    assert take_until(intake, "lost") == lanes
    assert take_until(intake, "assigned") == lanes
    give(server, ApiKey.HEARTBEAT, Errors.FENCED_INSTANCE_ID)
    assert take_until(intake, "lost") == lanes
    assert take_until(intake, "assigned") == lanes
