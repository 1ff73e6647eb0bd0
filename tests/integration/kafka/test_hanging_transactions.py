"""Transactions that hang in a real Kafka are ended as their coordinator decided, and no others are."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from broker.protocol.api_keys import ApiKey
from broker.records.records import Producer as RecordProducer
from purgatory.errors import Errors
from tests.integration.conftest import SOAK
from tests.services.fixtures import own_broker
from tests.services.hanging_transactions import end_hanging_transactions
from tests.services.kafka import ANSWER_TIMEOUT_S, Kafka
from tests.services.kafka_servers import MavenServer
from tests.services.raw_client import RawClient
from tests.services.site import Site
from tests.services.waiting import wait_until
from tests.unit.log_world import batch

pytestmark = [pytest.mark.integration, pytest.mark.apart]

PRODUCE_VERSION = 9
OFFSET_COMMIT_VERSION = 3
HIDDEN_S = 3.0
RECOVERY_S = 180.0  # half a minute of it is what an open transaction may take
POLICIES = """
name: hidden
match: {topics: ["~in"]}
delay: {default: 10ms, max: 1h}
target: {topic: "~out", allow: ["~out"]}
"""


@pytest.fixture
def trusting_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """A Kafka that takes records of transactions unknown to their coordinator: so they hang."""
    with own_broker(MavenServer(tmp_path, {"transaction.partition.verification.enable": "false"})) as server:
        yield Kafka(server)


def known_producers(client: RawClient, topic: str) -> Sequence[Any]:
    """Active producers of the topic's first partition."""
    asked = [{"name": topic, "partition_indexes": [0]}]
    [answer] = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked).topics
    found: Sequence[Any] = answer.partitions[0].active_producers
    return found


def values(kafka: Kafka, topic: str) -> set[bytes | None]:
    """Values that readers of committed records are given."""
    return {message.value() for message in kafka.read_all(topic)}


def test_what_hangs_is_ended_as_its_coordinator_decided(trusting_kafka: Kafka) -> None:
    kafka = trusting_kafka
    topics = {ending: kafka.topic(ending, 2) for ending in ("commits", "aborts")}
    with RawClient(kafka.bootstrap) as client:
        for ending, topic in topics.items():
            producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": ending})
            producer.init_transactions(ANSWER_TIMEOUT_S)
            producer.begin_transaction()
            producer.produce(topic, b"known", partition=0)
            assert producer.flush(ANSWER_TIMEOUT_S) == 0
            producer.commit_transaction() if ending == "commits" else producer.abort_transaction()
            [known] = known_producers(client, topic)
            sender = RecordProducer(known.producer_id, known.producer_epoch, 0)
            records = batch(b"hangs", producer=sender, is_transactional=True)
            answer = client.produce(topic, records, partition=1, transactional_id=ending, version=PRODUCE_VERSION)
            assert answer.error_code == Errors.NONE
            assert b"hangs" not in values(kafka, topic)
    ended = {(one.topic, one.partition, one.start) for one in end_hanging_transactions(kafka)}
    assert ended == {(topic, 1, 0) for topic in topics.values()}
    assert values(kafka, topics["commits"]) == {b"known", b"hangs"}
    assert values(kafka, topics["aborts"]) == set()
    assert end_hanging_transactions(kafka) == []


def hang_a_commit(client: RawClient, site: Site, transactional_id: str) -> None:
    """A commit of the group in a transaction whose coordinator knows nothing of it: it is never ended."""

    def told() -> Any:
        [state] = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[transactional_id]).transaction_states
        assert state.error_code == Errors.NONE, transactional_id
        return state

    wait_until(lambda: told().transaction_state.startswith("Complete"), ANSWER_TIMEOUT_S)  # its end would end this, too
    place = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = client.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        OFFSET_COMMIT_VERSION,
        transactional_id=transactional_id,
        group_id=site.group,
        producer_id=told().producer_id,
        producer_epoch=told().producer_epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": site.name("in"), "partitions": [place]}],
    )
    assert answer.topics[0].partitions[0].error_code == Errors.NONE


def commits_are_hidden(site: Site, partitions: Sequence[int] = (0,)) -> bool:
    consumer = Consumer({"bootstrap.servers": site.kafka.bootstrap, "group.id": site.group})
    try:
        consumer.committed([TopicPartition(site.name("in"), partition) for partition in partitions], timeout=HIDDEN_S)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError._TIMED_OUT)
    else:
        return False
    finally:
        consumer.close()


@pytest.mark.parametrize(("producer", "partitions"), [("a", 1), ("alone", 2)] if SOAK else [("alone", 2)])
def test_a_recovery_ends_what_hides_the_commits_of_its_group(
    trusting_kafka: Kafka, redis_url: str, tmp_path: Path, producer: str, partitions: int
) -> None:
    site = Site(trusting_kafka, redis_url, tmp_path)
    site.policies(POLICIES)
    source, target = site.topic("in", partitions), site.target("out")
    sidecar = site.sidecar("one").start()
    try:
        site.send(source)
        site.kafka.read(target, 1)
        assert sidecar.stop() == 0
        wait_until(lambda: not commits_are_hidden(site), RECOVERY_S)
        transactional_id = f"tickover.{site.group}:one.{producer}"
        if producer == "alone":  # it has had no transaction so far
            former = Producer({"bootstrap.servers": site.kafka.bootstrap, "transactional.id": transactional_id})
            former.init_transactions(ANSWER_TIMEOUT_S)
            abort_a_commit(former, site)
        with RawClient(site.kafka.bootstrap) as client:
            hang_a_commit(client, site, transactional_id)
        assert commits_are_hidden(site)
        sidecar.start()
        site.send(source)
        site.kafka.read(target, 2, RECOVERY_S)
        wait_until(lambda: not commits_are_hidden(site), RECOVERY_S)
        assert sidecar.stop() == 0
        assert len(site.kafka.read_all(target)) == 2
    finally:
        site.close()


def test_what_a_strangers_transaction_hides_holds_up_its_own_partition_alone(
    trusting_kafka: Kafka, redis_url: str, tmp_path: Path
) -> None:
    site = Site(trusting_kafka, redis_url, tmp_path)
    site.policies(POLICIES)
    source, target = site.topic("in", 4), site.target("out")
    stranger = Producer({"bootstrap.servers": site.kafka.bootstrap, "transactional.id": "stranger"})
    stranger.init_transactions(ANSWER_TIMEOUT_S)
    abort_a_commit(stranger, site)  # an id that began none has no time of its beginning
    with RawClient(site.kafka.bootstrap) as client:
        hang_a_commit(client, site, "stranger")
    sidecar = site.sidecar("one")
    sidecar.launch()
    try:
        site.kafka.produce(source, [(None, b"%d" % n, (), 0, n) for n in range(4)])
        assert {message.value() for message in site.kafka.read(target, 3)} == {b"1", b"2", b"3"}
        assert commits_are_hidden(site, range(4))
        assert not commits_are_hidden(site, range(1, 4))
        wait_until(lambda: any("hides" in problem for problem in sidecar.stats()["problems"]), ANSWER_TIMEOUT_S)
        abort_a_commit(stranger, site)
        assert site.kafka.read(target, 4, RECOVERY_S)[-1].value() == b"0"
        sidecar.wait_until_ready()
        assert sidecar.stop() == 0
        assert len(site.kafka.read_all(target)) == 4
    finally:
        site.close()


def abort_a_commit(producer: Producer, site: Site) -> None:
    """Of the same partition: it ends what the producer's id has left there."""
    member = Consumer({"bootstrap.servers": site.kafka.bootstrap, "group.id": site.group})
    producer.begin_transaction()
    place = [TopicPartition(site.name("in"), 0, 0)]
    producer.send_offsets_to_transaction(place, member.consumer_group_metadata(), ANSWER_TIMEOUT_S)
    producer.abort_transaction(ANSWER_TIMEOUT_S)
    member.close()
