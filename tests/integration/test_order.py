"""Order by key on a real Kafka, with the sidecar killed while records are parked."""

from collections import defaultdict
from random import Random

import pytest
from confluent_kafka import Message

from tests.integration.conftest import NewSite
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
    first = site.send(retries, [("tickover-attempt", b"4")], b"first", b"key")
    wait_until(
        lambda: sidecar.stats()["topics"][retries]["held"]["overflow"] == 1, otherwise=lambda: str(sidecar.stats())
    )
    site.send(retries, [("tickover-attempt", b"1")], b"second", b"key")
    site.send(retries, [("tickover-attempt", b"1")], b"other", b"another")
    [other] = site.kafka.read(target, 1)
    wait_until(lambda: sidecar.stats()["topics"][retries]["parked"] == 1, otherwise=lambda: str(sidecar.stats()))
    assert other.value() == b"other"
    _, before, behind = site.kafka.read(target, 3)
    assert (before.value(), behind.value()) == (b"first", b"second")
    assert dict(headers_of(behind))["tickover-due"] == b"%d" % (first.timestamp()[1] + 5_000)


def of_keys(messages: list[Message]) -> dict[bytes, list[bytes]]:
    """The values of each key in the order in which they arrived."""
    values: dict[bytes, list[bytes]] = defaultdict(list)
    for message in messages:
        values[message.key() or b""].append(message.value() or b"")
    return values
