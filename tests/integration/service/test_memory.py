"""Memory of a sidecar, a process of its own, while it takes in what is held in Redis. A smaller benchmarks.memory."""

import os

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from sidecar.kafka.commit_reader import commits_at
from tests.integration.conftest import NewSite
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = pytest.mark.integration

RECORDS = 100_000
BUNCH = 10_000
PARTITIONS = 4
VALUE_BYTES = 200
FAR = b"2h"
MEGABYTE = 1_000_000
# Of all at once: what the client reads ahead, and up to 20,000 records on their way to Redis. These buffers stay with
# the process for a while, and its next records use them again.
AT_ONCE_MAX = 150 * MEGABYTE
# Of as many in bunches, behind that: 250 bytes that are left of each record would be 25.
IN_BUNCHES_MAX = 25 * MEGABYTE
POLICIES = """\
name: far
match: {topics: [~in]}
delay: {default: 1h, max: 10d}
target: {topic: ~out, allow: [~out]}
dead_letter: {topic: ~dead}
"""


def hold(site: Site, sidecar: Sidecar, so_far: int, count: int) -> None:
    """Send records that are due far from now; return when Redis has them, and the group's commits say so."""
    headers = [("tickover-delay", FAR)]
    content = [(b"key-%d" % n, os.urandom(VALUE_BYTES), headers, 0, n % PARTITIONS) for n in range(count)]
    site.kafka.produce(site.name("in"), content)
    client = {"bootstrap.servers": site.kafka.bootstrap}
    places = [ClientPartition(site.name("in"), partition) for partition in range(PARTITIONS)]

    def committed() -> int:
        return sum(one.offset for one in commits_at(client, site.group, places))

    wait_until(lambda: committed() >= so_far + count, otherwise=sidecar.last_words)


def test_what_is_held_in_redis_takes_no_memory_here(new_site: NewSite) -> None:
    site = new_site()
    site.topic("in", PARTITIONS)
    for role in ("out", "dead"):
        site.topic(role)
    site.policies(POLICIES)
    sidecar = site.sidecar("one").start()
    memory = [sidecar.memory_bytes()]
    hold(site, sidecar, 0, RECORDS)
    memory.append(sidecar.memory_bytes())
    for so_far in range(RECORDS, 2 * RECORDS, BUNCH):
        hold(site, sidecar, so_far, BUNCH)
    memory.append(sidecar.memory_bytes())
    wait_until(lambda: sidecar.stats()["topics"][site.name("in")]["held"]["overflow"] == 2 * RECORDS)
    figures = ", ".join(f"{size / MEGABYTE:.1f} MB" for size in memory)
    print(f"\nempty, {RECORDS} held, {2 * RECORDS} held: {figures}")
    empty, first, second = memory
    assert first - empty <= AT_ONCE_MAX, figures
    assert second - first <= IN_BUNCHES_MAX, figures
    assert sidecar.stop() == 0
