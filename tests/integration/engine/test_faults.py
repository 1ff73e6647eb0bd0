"""Failures around the sidecar, and what is seen and done then: each test breaks one thing and looks from outside."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions
from redis import Redis

from sidecar.embedded.valkey import EmbeddedValkey
from tests.integration.conftest import NewSite
from tests.services.fixtures import own_broker, own_server
from tests.services.kafka import Kafka
from tests.services.sidecar_process import START_S, Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: faults
match: {topics: ["~in*"]}
delay: {default: 10ms, max: 1h}
target: {topic: "~out", allow: ["~*"]}
"""
SOON_S = 120.0
RECOVERY_S = 240.0  # a broker that restarts on a busy machine answers nothing for minutes
END_S = 20.0
PROMPT = {"SHUTDOWN_TIMEOUT": f"{END_S:.0f}s"}
BACK_S = 1.0  # the design's for a Redis that is back
SLACK_S = 25.0  # of a busy machine
FROZEN_MS = 5_000  # what a call to a Redis takes that doesn't answer
ATTEMPTS = 5


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker that a test may stop: no other test has it."""
    with own_broker(own_server(tmp_path_factory.mktemp("faulty-kafka"))) as server:
        yield Kafka(server)


@pytest.fixture
def site(new_site: NewSite) -> Site:
    """A site with its source and its target."""
    return with_topics(new_site())


def with_topics(site: Site) -> Site:
    """Write the policies and create what they name."""
    site.policies(POLICIES)
    site.topic("in")
    site.target("out")
    return site


def problems(sidecar: Sidecar) -> str:
    """Complaint of /readyz; empty when the sidecar is ready."""
    answer = sidecar.call("GET", "/readyz")
    return "" if answer.is_success else str(answer.json()["detail"])


def wait_for_problem(sidecar: Sidecar, text: str, timeout_s: float) -> None:
    """Until /readyz names it."""
    wait_until(lambda: text in problems(sidecar), timeout_s, lambda: f"not named: {text}; but: {problems(sidecar)}")


def death(sidecar: Sidecar, timeout_s: float = START_S) -> str:
    """The reason that a process gave which ended with status 1 by itself."""
    assert sidecar.wait_until_ended(timeout_s) == 1
    return str(sidecar.messages("critical")[-1]["error"])


def test_brokers_that_go_away_are_waited_for_and_their_silence_quarantines_nothing(
    own_kafka: Kafka, redis_url: str, tmp_path: Path
) -> None:
    site = with_topics(Site(own_kafka, redis_url, tmp_path))
    late = site.target("late")
    sidecar = site.sidecar("one", **PROMPT).start()
    try:
        asked = [("tickover-target", late.encode()), ("tickover-delay", b"2s")]
        own_kafka.produce(site.name("in"), [(b"key", b"value", asked, 0, 0)] * 50)
        own_kafka.stop()
        wait_for_problem(sidecar, "brokers are down", SOON_S)
        own_kafka.start()
        assert len(own_kafka.read(late, 50, RECOVERY_S)) == 50
        wait_until(lambda: not problems(sidecar), SOON_S, lambda: problems(sidecar))
        assert sidecar.stats()["topics"][site.name("in")]["quarantined"] == 0
        own_kafka.stop()
        wait_for_problem(sidecar, "brokers are down", SOON_S)
        started_s = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - started_s < END_S + SLACK_S
        waiting = site.sidecar("two", **PROMPT)
        waiting.launch()
        wait_until(lambda: "no answer from Kafka" in waiting.last_words(), SOON_S, waiting.last_words)
        assert waiting.call("GET", "/livez").status_code == 200
        wait_for_problem(waiting, "it waits for Kafka", SOON_S)
        started_s = time.monotonic()
        assert waiting.stop() == 0, waiting.last_words()
        assert time.monotonic() - started_s < END_S + SLACK_S
        waiting.launch()
        wait_until(
            lambda: not waiting.is_ready() and "it waits for Kafka" in waiting.readiness, SOON_S, waiting.last_words
        )
        own_kafka.start()
        waiting.wait_until_ready()
    finally:
        site.close()


def hold_far(site: Site, sidecar: Sidecar, count: int) -> None:
    """Put `count` records into Redis, each with its number for an id; they leave when they are fired."""
    far = ("tickover-delay", b"1h")
    records = [(b"key", b"far", [far, ("tickover-id", b"%d" % number)], 0, 0) for number in range(count)]
    site.kafka.produce(site.name("in"), records)
    counts = sidecar.stats
    wait_until(lambda: counts()["topics"][site.name("in")]["held"]["overflow"] == count, SOON_S, sidecar.last_words)


def fire_far(site: Site, count: int) -> None:
    for number in range(count):
        site.send(site.name("in"), [("tickover-id", b"%d" % number), ("tickover-action", b"fire")])


def fires_in_time(site: Site, redis: EmbeddedValkey, nth: int) -> bool:
    """Whether a near record, the n-th, waits less than a call to this Redis takes, which is frozen from now on."""
    near, source = site.name("near"), site.name("in")
    os.kill(redis.process_id, signal.SIGSTOP)
    site.send(source, [("tickover-delay", b"4s")])  # beyond the horizon: it wants Redis
    report = site.send(source, [("tickover-delay", b"300ms"), ("tickover-target", near.encode())])
    try:
        found = site.kafka.read(near, nth, SLACK_S)
    except TimeoutError:  # its partition was lost while the machine stood still: its recovery waits for Redis
        return False
    return bool(found[-1].timestamp()[1] - report.timestamp()[1] < FROZEN_MS)


def test_a_frozen_redis_stops_neither_near_records_nor_the_end(site: Site, own_redis: EmbeddedValkey) -> None:
    site.target("near")
    sidecar = site.sidecar("one", REDIS__URL=own_redis.url, **PROMPT).start()
    hold_far(site, sidecar, 5)
    attempts = 1
    while not fires_in_time(site, own_redis, attempts):  # the machine stood still, or the record waited for Redis
        assert attempts < ATTEMPTS, "near records wait for Redis"
        attempts += 1
        os.kill(own_redis.process_id, signal.SIGCONT)
        wait_until(lambda: not problems(sidecar), SOON_S, lambda: problems(sidecar))
    wait_for_problem(sidecar, "Redis does not answer", SOON_S)
    os.kill(own_redis.process_id, signal.SIGCONT)
    wait_until(lambda: not problems(sidecar), BACK_S + SLACK_S, lambda: problems(sidecar))
    fire_far(site, 5)
    assert len(site.kafka.read(site.name("out"), 5 + attempts)) == 5 + attempts
    os.kill(own_redis.process_id, signal.SIGSTOP)
    site.send(site.name("in"), [("tickover-delay", b"4s")])
    started_s = time.monotonic()
    assert sidecar.stop() == 0, sidecar.last_words()
    assert time.monotonic() - started_s < END_S + SLACK_S
    os.kill(own_redis.process_id, signal.SIGCONT)


def test_redis_may_be_away_at_start_and_what_it_loses_is_put_back(site: Site, own_redis: EmbeddedValkey) -> None:
    own_redis.stop()
    sidecar = site.sidecar("one", REDIS__URL=own_redis.url)
    sidecar.launch()
    wait_until(lambda: sidecar.log.exists() and bool(sidecar.messages("warning")), SOON_S, sidecar.last_words)
    own_redis.start()
    sidecar.wait_until_ready()
    hold_far(site, sidecar, 1)
    with Redis.from_url(own_redis.url, protocol=2) as client:
        # Held there by what the ledger says: it is put there a moment later, and what comes after is no loss.
        wait_until(lambda: any(key.endswith(b":hw") for key in client.scan_iter()), SOON_S, sidecar.last_words)
        client.flushall()
    wait_until(lambda: sidecar.stats()["rebuild"]["finished"] > 0, SOON_S, sidecar.last_words)
    rebuild = sidecar.stats()["rebuild"]
    assert (rebuild["finished"], rebuild["records"], rebuild["lost"], rebuild["partitions"]) == (1, 1, 0, [])
    fire_far(site, 1)
    assert len(site.kafka.read(site.name("out"), 1)) == 1
    assert sidecar.stop() == 0


def test_a_topic_that_refuses_one_record_stops_no_other(site: Site) -> None:
    compacted = site.kafka.create_topic(site.name("compacted"), cleanup_policy="compact")
    sidecar = site.sidecar("one").start()
    header = ("tickover-target", compacted.encode())
    for key in (b"a", None, b"b"):
        site.send(site.name("in"), [header, ("tickover-delay", b"300ms")], key=key)
    assert sorted(message.key() or b"" for message in site.kafka.read(compacted, 2)) == [b"a", b"b"]
    [refused] = site.kafka.read(site.quarantine, 1)
    headers = dict(refused.headers() or [])
    assert headers["tickover-reason"] == b"unknown_target"
    assert compacted in str(headers["tickover-detail"])
    assert sidecar.stop() == 0


def test_sources_grow_and_appear_while_it_runs_and_none_at_all_is_ready_too(new_site: NewSite) -> None:
    site = new_site()
    site.policies(POLICIES)
    site.target("out")
    sidecar = site.sidecar("one").start()  # no source at all
    assert sidecar.partitions() == 0
    source = site.topic("in")
    wait_until(lambda: sidecar.partitions() == 1, SOON_S, sidecar.last_words)
    site.kafka.admin.create_partitions([NewPartitions(source, 3)])[source].result(SOON_S)
    wait_until(lambda: sidecar.partitions() == 3, SOON_S, sidecar.last_words)
    for partition in range(3):
        site.kafka.produce(source, [(b"key", b"value", (), 0, partition)])
    assert len(site.kafka.read(site.name("out"), 3)) == 3
    assert sidecar.stop() == 0


def test_a_source_created_again_is_read_from_its_start_and_a_ledger_that_is_deleted_ends_the_process(
    site: Site,
) -> None:
    sidecar = site.sidecar("one").start()
    source, target = site.name("in"), site.name("out")
    for _ in range(20):
        site.send(source)
    site.kafka.read(target, 20)
    site.kafka.admin.delete_topics([source])[source].result(SOON_S)
    wait_until(lambda: sidecar.partitions() == 0, SOON_S, sidecar.last_words)
    site.topic("in")
    for _ in range(5):
        site.send(source, value=b"new")
    assert [message.value() for message in site.kafka.read(target, 25)[20:]] == [b"new"] * 5
    ledger = f"tickover.{site.group}.ledger"
    site.kafka.admin.delete_topics([ledger])[ledger].result(SOON_S)
    site.send(source)
    assert "the ledger" in death(sidecar)


def test_a_second_process_with_the_same_instance_id_ends_the_first(site: Site) -> None:
    long = {"KAFKA__CLIENT__SESSION_TIMEOUT_MS": "45000"}  # one that ended before would explain its being fenced
    first = site.sidecar("same", **long).start()
    second = site.sidecar("same", LOG__LEVEL="warning", **long)
    second.log = second.log.with_suffix(".second")
    second.start()
    assert "fenced" in death(first)
    assert second.stop() == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"API__TOKENS_FILE": "/nonexistent"}, "tokens file"),
        ({"KAFKA__CLIENT__NO_SUCH_OPTION": "geheim"}, "no.such.option"),
        ({"POLICIES__FILE": "/nonexistent.yaml"}, "/nonexistent.yaml"),
        ({}, "in use"),
    ],
    ids=["tokens", "client option", "policies", "port"],
)
def test_what_can_not_start_says_why(site: Site, settings: dict[str, str], reason: str) -> None:
    sidecar = site.sidecar("one", **settings)
    with socket.socket() as listener:
        if reason == "in use":
            listener.bind(("127.0.0.1", int(sidecar.url.rpartition(":")[2])))
            listener.listen()
        sidecar.launch()
        assert reason in death(sidecar)
    log = sidecar.log.read_text()
    assert "Traceback" not in log
    assert "geheim" not in log
