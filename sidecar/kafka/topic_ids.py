"""Kafka's ids of topics, as jobs ask for them. The offsets of a plan are of a topic, not of its name."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from policies.kafka_clients import AdminClient
from sidecar.kafka.client_settings import admin_settings
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.kafka.topics import topic_ids

ANSWER_S: Final = 5.0  # for each of two questions: within a lease


class TopicIds:
    """For any thread; its client is made when it is needed. Methods raise LogUnavailable."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = admin_settings(client)
        self._admin: AdminClient | None = None

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Ids by name, of those topics that are there; "" where the cluster has no ids."""
        if not topics:
            return {}
        admin = self._admin or AdminClient(self._client)
        self._admin = None  # one that saw brokers die may look for them in vain: the next try is with another
        try:
            found = topic_ids(admin, sorted(topics), ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            raise LogUnavailable(f"no answer about the ids of topics: {error}") from None
        self._admin = admin
        return found

    def of_one(self, topic: str) -> str:
        """The id of a topic that must be there; "" where the cluster has no ids."""
        found = self.of([topic])
        if topic not in found:
            raise LogUnavailable(f"the topic {topic} isn't there at the moment")
        return found[topic]
