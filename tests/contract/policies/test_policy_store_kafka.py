"""The policy store and what only a real broker does: create topics, lose records, die and come back."""

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from policies.errors import (
    PolicyStoreUnavailable,
)
from sidecar.embedded.java_kafka import missing_tools
from tests.contract.policies.policy_replicas import TOPIC, Place, policy, replica
from tests.services.fixtures import missing
from tests.services.kafka import Kafka
from tests.services.kafka_servers import MavenServer
from tests.services.waiting import wait_until


@pytest.mark.integration
def test_a_missing_topic_is_created_to_keep_everything_in_one_order(kafka: Kafka) -> None:
    place = Place(kafka.bootstrap, f"policies-{uuid4().hex}")
    with replica(place):
        admin = AdminClient({"bootstrap.servers": place.brokers})
        assert len(admin.list_topics(timeout=60).topics[place.topic].partitions) == 1
        resource = ConfigResource(ConfigResource.Type.TOPIC, place.topic)
        found = admin.describe_configs([resource])[resource].result(60)
        wanted = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert {name: found[name].value for name in wanted} == wanted


@pytest.mark.integration
def test_a_topic_that_lost_its_beginning_is_refused(kafka: Kafka) -> None:
    place = Place(kafka.bootstrap, f"policies-{uuid4().hex}")
    with replica(place) as store:
        store.put(policy("a"), 0, "me")
        store.put(policy("b"), 0, "me")
    admin = AdminClient({"bootstrap.servers": place.brokers})
    cut = TopicPartition(place.topic, 0, 1)
    admin.delete_records([cut])[cut].result(60)
    with pytest.raises(PolicyStoreUnavailable, match="lost its first 1 records"), replica(place):
        pass


@pytest.mark.integration
def test_an_outage_shows_and_passes_by_itself(tmp_path: Path) -> None:
    if (reason := missing_tools()) is not None:
        missing("a broker to kill (Kafka from Maven)", reason)
    server = MavenServer(tmp_path)
    server.start()
    try:
        with replica(Place(server.bootstrap, TOPIC)) as store:
            written = store.put(policy("a"), 0, "me")
            server.kill()
            wait_until(lambda: not store.healthy)
            assert store.table.policies == {"a": written}
            with pytest.raises(PolicyStoreUnavailable, match="cannot be written now"):
                store.put(policy("b"), 0, "me")
            server.start()
            wait_until(lambda: store.healthy, otherwise=lambda: str(store.reason))
            assert store.put(policy("b"), 0, "me").version == 1
    finally:
        server.remove()
