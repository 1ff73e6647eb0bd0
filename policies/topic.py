"""The policy topic itself: made when it is missing, never changed when it is there."""

import logging
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic, TopicMetadata

from policies.errors import PolicyStoreUnavailable
from policies.kafka_clients import AdminClient

ASK_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.05
TOPIC_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

_logger = logging.getLogger(__name__)


def ensure_topic(settings: Mapping[str, str], topic: str, replication_factor: int, timeout_s: float) -> None:
    """Return when the topic is there. Raises PolicyStoreUnavailable."""
    deadline_s = time.monotonic() + timeout_s
    admin = AdminClient(dict(settings))
    found = _find(admin, topic, deadline_s)
    if found is None:
        _create(admin, topic, replication_factor, timeout_s)
        while (found := _find(admin, topic, deadline_s)) is None:
            if time.monotonic() > deadline_s:
                raise PolicyStoreUnavailable(f"topic {topic} was created, but no broker shows it yet")
            time.sleep(PAUSE_S)
    if len(found.partitions) > 1:
        _logger.warning("topic %s has more than one partition: only partition 0 is used", topic)


def _find(admin: AdminClient, topic: str, deadline_s: float) -> TopicMetadata | None:
    """The topic's metadata, None when there is none. Asks again while the brokers do not answer."""
    while True:
        try:
            # All topics: asking for one by its name would make many brokers create it, with their retention.
            timeout_s = min(ASK_TIMEOUT_S, max(deadline_s - time.monotonic(), PAUSE_S))
            found = admin.list_topics(timeout=timeout_s).topics.get(topic)
            return found if found is not None and found.partitions else None
        except KafkaException as error:
            if time.monotonic() > deadline_s:
                raise PolicyStoreUnavailable(f"no answer from Kafka: {error.args[0]}") from error
            _logger.warning("no answer from Kafka yet: %s", error.args[0])


def _create(admin: AdminClient, topic: str, replication_factor: int, timeout_s: float) -> None:
    wanted = NewTopic(topic, 1, replication_factor, config=dict(TOPIC_SETTINGS))
    outcome = admin.create_topics([wanted], request_timeout=timeout_s)[topic]
    try:
        outcome.result(timeout=timeout_s + 1)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise PolicyStoreUnavailable(_advice(topic, str(error.args[0]))) from error
    except TimeoutError as error:
        raise PolicyStoreUnavailable(_advice(topic, "no answer")) from error


def _advice(topic: str, problem: str) -> str:
    options = " ".join(f"--config {key}={value}" for key, value in TOPIC_SETTINGS.items())
    return (
        f"topic {topic} is missing and cannot be created ({problem}); "
        f"create it: kafka-topics.sh --create --topic {topic} --partitions 1 {options}"
    )
