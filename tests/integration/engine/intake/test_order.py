"""Order by key on a real Kafka, with the sidecar killed while records are parked."""

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar, now_ms
from tests.services.site import headers_of
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES = """
name: orders
match: {topics: ["~orders-retry"]}
order: key
retry: {attempts: 9, backoff: {kind: list, delays: [50ms, 400ms, 2500ms, 5s]}}
"""
KEYS = 8
RECORDS = 400
KILLED_AFTER = (50, 150, 300)  # emitted records
SEED = 11


def test_keys_come_back_in_order_whatever_crashes(new_site: NewSite) -> None:
    site = new_site()
    retries = site.topic("orders-retry", partitions=2)
    target = site.target("orders", partitions=3)
    site.target("orders-dlq")
    site.policies(POLICIES)
    sidecar = site.sidecar(GUARANTEE="exactly_once").start()
    chance = Random(SEED)
    sent: dict[bytes, list[bytes]] = defaultdict(list)
    records = []
    for number in range(RECORDS):
        key, value = b"key-%d" % chance.randrange(KEYS), b"%d" % number
        sent[key].append(value)
        headers = [("tickover-attempt", b"%d" % chance.randint(1, 4))]
        records.append((key, value, headers, 0, int(key[-1:]) % 2))
    site.kafka.produce(retries, records)

    for count in KILLED_AFTER:
        site.kafka.read(target, count)
        sidecar.kill()
        sidecar.launch()
    sidecar.wait_until_ready()
    arrived = site.kafka.read(target, RECORDS)

    assert of_keys(arrived) == sent
    wait_until(lambda: sidecar.stats()["topics"][retries]["parked"] == 0, otherwise=lambda: str(sidecar.stats()))
    assert sidecar.stats()["ledger_imbalance"] == 0
    assert sidecar.stop() == 0, sidecar.last_words()


def test_a_key_that_waits_in_redis_parks_its_own_and_no_others(new_site: NewSite) -> None:
    site = new_site()
    retries, target = site.topic("orders-retry"), site.target("orders")
    site.target("orders-dlq")
    site.policies(POLICIES)
    sidecar = site.sidecar().start()
    arrived = 0
    for seconds in (5, 20, 60):  # on a busy machine the first may come near before the others are there
        delay = [("tickover-attempt", b"4"), ("tickover-delay", b"%ds" % seconds)]
        first = site.send(retries, delay, b"first", b"key")
        due_ms = first.timestamp()[1] + seconds * 1_000
        seen_before(due_ms, lambda: counts(sidecar, retries)["held"]["overflow"] == 1)
        site.send(retries, [("tickover-attempt", b"1")], b"second", b"key")
        site.send(retries, [("tickover-attempt", b"1")], b"other", b"another")
        was_parked = seen_before(due_ms - 2_000, lambda: counts(sidecar, retries)["parked"] == 1)
        came = site.kafka.read(target, arrived + 3)[arrived:]
        arrived += 3
        values = [message.value() for message in came]
        assert [value for value in values if value != b"other"] == [b"first", b"second"]
        if was_parked:
            break
    assert was_parked
    assert values == [b"other", b"first", b"second"]
    assert dict(headers_of(came[2]))["tickover-due"] == b"%d" % due_ms


def counts(sidecar: Sidecar, topic: str) -> dict[str, Any]:
    """Counts that the sidecar gives for a source; zeros where it has none."""
    return dict(sidecar.stats()["topics"].get(topic, {"held": {"overflow": 0}, "parked": 0}))


def seen_before(end_ms: int, true: Callable[[], bool]) -> bool:
    """Whether the condition holds at some moment before this time."""
    found: list[bool] = []

    def is_decided() -> bool:
        found.append(true())
        return found[-1] or now_ms() > end_ms

    wait_until(is_decided)
    return found[-1]


def of_keys(messages: list[Message]) -> dict[bytes, list[bytes]]:
    """The values of each key in the order in which they arrived."""
    values: dict[bytes, list[bytes]] = defaultdict(list)
    for message in messages:
        values[message.key() or b""].append(message.value() or b"")
    return values
