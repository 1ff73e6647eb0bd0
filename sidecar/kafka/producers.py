"""The engine's producers over confluent-kafka that aren't transactional, and the largest batches that topics take."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from policies.kafka_clients import AdminClient, Producer
from sidecar.kafka.client_settings import ANSWER_TIMEOUT_S, client_log
from sidecar.kafka.errors import ABSENT, OnProblem, error_callback, raising_what_is_meant
from sidecar.kafka.topics import has_controller
from sidecar.model.ports import NO_ANSWER

log = logging.getLogger(__name__)

LIMIT_TIMEOUT_S: Final = 5.0


class KafkaOutput:
    """A producer as the engine's port. Its bound `produce` is the client's own: nothing stands in the hot path."""

    refused: type[Exception] = KafkaException

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self._producer = Producer({**settings, "error_cb": error_callback(on_problem), "logger": client_log})
        self.produce: Any = self._producer.produce  # its stub knows nothing of the order of arguments
        self.poll = raising_what_is_meant(self._producer.poll)
        self.flush = raising_what_is_meant(self._producer.flush)


class TargetTopics:
    """Topics that are emitted to, as brokers know them. Both block: not for the engine."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 when there is none or we may not see it, NO_ANSWER when nobody knows.

        Brokers that are away say nothing about the topic: it is asked for again.
        """
        try:
            known = self._admin.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            log.warning("no answer about a topic", extra={"topic": topic, "error": str(error.args[0])})
            return NO_ANSWER
        if known.error is None:
            led = any(partition.leader >= 0 for partition in known.partitions.values())
            return len(known.partitions) if led else NO_ANSWER  # what is for the others is suspended when it is tried
        return 0 if known.error.code() in ABSENT else NO_ANSWER

    def bytes_max(self, topic: str) -> int:
        """`max.message.bytes` of a topic; 0 where nobody says, or we may not see it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            if not has_controller(self._admin, topic, LIMIT_TIMEOUT_S):
                return 0
            answers = self._admin.describe_configs([resource], request_timeout=LIMIT_TIMEOUT_S)
            entry = answers[resource].result(LIMIT_TIMEOUT_S + 1).get("max.message.bytes")
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, TimeoutError) or error.args[0].code() not in ABSENT:  # a right that nobody needs
                log.info("the largest batch of a topic is not known", extra={"topic": topic, "error": str(error)})
            return 0
        return int(entry.value) if entry is not None and entry.value else 0


class LoneOutput:
    """`KafkaOutput` for records sent one by one, made when the first is sent: most processes never need it."""

    refused: type[Exception] = KafkaException

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self._settings = settings
        self._on_problem = on_problem
        self._output: KafkaOutput | None = None

    def produce(self, *record: Any) -> None:
        """As `Output.produce`."""
        if self._output is None:
            self._output = KafkaOutput(self._settings, self._on_problem)
        self._output.produce(*record)

    def poll(self, seconds: float) -> int:
        """As `Output.poll`."""
        return 0 if self._output is None else self._output.poll(seconds)
