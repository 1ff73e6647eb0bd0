"""A second cluster that has a mirror of the sources, as MirrorMaker 2 makes it: what fires there after the first.

The mirror here is a loop that copies committed records to other offsets: what comes of it doesn't depend on who copies.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from sidecar.kafka.commit_reader import group_commits
from tests.services.kafka import ANSWER_TIMEOUT_S
from tests.services.second_cluster import MOVED_BY, SOURCES, arrivals, judge, mirror, two_clusters, value_of
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DONE = ("done-0", "done-1", "done-2")
HELD = ("near-0", "far-0")
UNSEEN = ("unseen-0",)
HORIZON = "10s"


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    with two_clusters(tmp_path) as both:
        yield both


def remind(site: Site, value: str, delay: bytes) -> None:
    site.send(site.name("reminders"), [("tickover-delay", delay)], value=value.encode())


def commits_of(site: Site) -> list[TopicPartition]:
    return group_commits({"bootstrap.servers": site.kafka.bootstrap}, site.group)


def mirror_commits(first: Site, second: Site) -> None:
    """The group's commits with their metadata, at the offsets that the mirror has; and the ledger that they name."""
    ledger = f"tickover.{first.group}.ledger"
    second.kafka.create_topic(ledger, 4, message_timestamp_type="LogAppendTime")
    mirror(ledger, first.kafka, second.kafka)
    moved = [TopicPartition(one.topic, one.partition, one.offset + MOVED_BY, one.metadata) for one in commits_of(first)]
    request = [ConsumerGroupTopicPartitions(first.group, moved)]
    second.kafka.admin.alter_consumer_group_offsets(request)[first.group].result(ANSWER_TIMEOUT_S)


@pytest.mark.parametrize("mirrored", ["sources", "sources, ledger and commits"])
def test_a_mirror_loses_what_it_had_not_copied_and_repeats_what_it_retains(
    sites: tuple[Site, Site], mirrored: str
) -> None:
    first, second = sites
    sidecar = first.sidecar("one", HORIZON=HORIZON).start()
    for value in DONE:
        remind(first, value, b"0s")
    wait_until(lambda: len(arrivals(first)) == len(DONE), otherwise=sidecar.last_words)
    remind(first, "near-0", b"8s")
    remind(first, "far-0", b"20s")
    wait_until(first.is_in_redis, otherwise=sidecar.last_words)
    for role in SOURCES:
        mirror(first.name(role), first.kafka, second.kafka)
    if mirrored != "sources":
        wait_until(
            lambda: commits_of(first) != [],
            otherwise=sidecar.last_words,
        )
        mirror_commits(first, second)
    for value in UNSEEN:
        remind(first, value, b"1h")
    sidecar.kill()
    there = arrivals(first)
    first.kafka.kill()

    successor = second.sidecar("one", HORIZON=HORIZON).start()
    wait_until(lambda: len(arrivals(second)) == len(DONE) + len(HELD), otherwise=successor.last_words)
    assert successor.stop() == 0, successor.last_words()
    verdict = judge([*DONE, *HELD, *UNSEEN], there, arrivals(second))
    print(f"\nmirror of {mirrored}: {verdict}")
    fired = set(map(value_of, there))
    assert fired >= set(DONE)
    assert verdict == (set(UNSEEN), fired, 0)
