"""A client quota of a real Kafka: its brokers take far less in a second than what is due at once."""

import random
from pathlib import Path

import pytest

from tests.integration.conftest import NewSite
from tests.services.fixtures import own_tools

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

POLICIES = """
name: storm
match: {topics: ["~reminders"]}
delay: {default: 5s}
target: {topic: "~mail"}
"""
CLIENT = "slow-one"
BYTES_PER_S = 150_000
RECORDS = 6_000
VALUE_BYTES = 500  # which don't compress
PARTITIONS = 4
ARRIVED_S = 300.0  # without aborted transactions it takes 15


def test_what_brokers_throttle_arrives_once_and_is_seldom_sent_again(new_site: NewSite, tmp_path: Path) -> None:
    site, chance = new_site(), random.Random(1)
    tools = own_tools(site.kafka, tmp_path)
    source, target = site.topic("reminders", PARTITIONS), site.target("mail", PARTITIONS)
    site.policies(POLICIES)
    quota = ("--alter", "--entity-type", "clients", "--entity-name", CLIENT)
    tools.run("ConfigCommand", *quota, "--add-config", f"producer_byte_rate={BYTES_PER_S}")
    values = [b"%d:" % number + chance.randbytes(VALUE_BYTES) for number in range(RECORDS)]
    site.kafka.produce(source, [(None, value, [], 0, number % PARTITIONS) for number, value in enumerate(values)])
    sidecar = site.sidecar("a", GUARANTEE="exactly_once", KAFKA__CLIENT__CLIENT_ID=CLIENT).start()

    arrived = site.kafka.read(target, RECORDS, ARRIVED_S)
    assert sorted(message.value() or b"" for message in arrived) == sorted(values)
    assert sidecar.stop() == 0, sidecar.last_words()
    assert len(site.kafka.read_all(target)) == RECORDS
    written = len(site.kafka.read_all(target, "read_uncommitted"))
    print(f"{written} written for {RECORDS}")
    assert written < 3.5 * RECORDS  # when transactions had whatever was due it was more than four times
    tools.run("ConfigCommand", *quota, "--delete-config", "producer_byte_rate")
