"""The engine's producers over confluent-kafka, and what it asks brokers beside them (`consumer.py`: its consumer)."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_INVALID, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from policies.kafka_clients import AdminClient, Consumer, Producer, is_fatal
from sidecar.kafka.client_settings import admin_settings, uncommitted_commit_reader_settings
from sidecar.kafka.errors import ABSENT
from sidecar.model.ports import NO_ANSWER
from sidecar.model.record import TopicPartition

log = logging.getLogger(__name__)
client_log = logging.getLogger("librdkafka")

ANSWER_TIMEOUT_S: Final = 10.0
OFFSETS_MAX: Final = 200  # in one commit: brokers write them as one batch, with names and metadata 5 KB each at most
LIMIT_TIMEOUT_S: Final = 5.0
WORDS_LOST: Final = "a fatal error of the client, whose words were lost while it logged: its line in the log says more"
OnProblem = Callable[[str], None]


def commits_of(offsets: Mapping[TopicPartition, tuple[int, str]]) -> Iterator[list[ClientPartition]]:
    """Offsets and metadata as the client takes them, as many at a time as fit into one request; nothing is one, too."""
    wanted = [ClientPartition(lane.topic, lane.partition, offset, text) for lane, (offset, text) in offsets.items()]
    for first in range(0, max(len(wanted), 1), OFFSETS_MAX):
        yield wanted[first : first + OFFSETS_MAX]


class KafkaOutput:
    """A producer as the engine's port. Its bound `produce` is the client's own: nothing stands in the hot path."""

    refused: type[Exception] = KafkaException

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self._producer = Producer({**settings, "error_cb": error_callback(on_problem), "logger": client_log})
        self.produce: Any = self._producer.produce  # its stub knows nothing of the order of arguments
        self.poll = raising_what_is_meant(self._producer.poll)
        self.flush = raising_what_is_meant(self._producer.flush)

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 when there is none or we may not see it, NO_ANSWER when nobody knows.

        Blocks: not for the engine. Brokers that are away say nothing about the topic: it is asked for again.
        """
        try:
            known = self._producer.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
        except KafkaException as error:
            log.warning("no answer about a topic", extra={"topic": topic, "error": str(error.args[0])})
            return NO_ANSWER
        if known.error is None:
            led = any(partition.leader >= 0 for partition in known.partitions.values())
            return len(known.partitions) if led else NO_ANSWER  # what is for the others is suspended when it is tried
        return 0 if known.error.code() in ABSENT else NO_ANSWER


def has_controller(admin: AdminClient, topic: str, seconds: float) -> bool:
    """Whether the cluster has a controller, of which the client's admin calls ask. librdkafka's mock has none, and they
    would wait for one without end. Blocks for `seconds` at most. Raises KafkaException.
    """
    cluster = admin.list_topics(topic, timeout=seconds)
    return cluster.controller_id in cluster.brokers


class TopicLimits:
    """Largest batches that topics take, as brokers say. Makes its client with the first question, in its thread."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = client
        self._admin: AdminClient | None = None

    def bytes_max(self, topic: str) -> int:
        """`max.message.bytes` of a topic; 0 where nobody says, or we may not see it. Blocks: not for the engine."""
        if self._admin is None:
            self._admin = AdminClient(admin_settings(self._client))
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


def error_callback(on_problem: OnProblem) -> Callable[[KafkaError], None]:
    """Clients report here what they recover from by themselves: it shows in /readyz and in the log.

    What they can't recover from is raised: it comes out of `poll` or `consume` and ends the engine.
    """

    def report(error: KafkaError) -> None:
        if is_fatal(error):
            raise KafkaException(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            on_problem("all brokers are down")
        log.warning("kafka client", extra={"error": str(error)})

    return report


def raising_what_is_meant(serve: Callable[[float], int]) -> Callable[[float], int]:
    """A producer's `poll` or `flush`. What it doesn't survive comes as KafkaException, whatever it serves meanwhile.

    The client sets that exception while it serves its events, and calls the next delivery report none the less; the
    interpreter makes a SystemError of it, with the client's own words as its cause. Or it logs its next line, and looks
    in vain for its logger's method, of which comes an AttributeError without them.
    """

    def served(seconds: float) -> int:
        try:
            return serve(seconds)
        except SystemError as error:
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from None
            raise
        except AttributeError as error:
            if isinstance(error.obj, logging.Logger):
                raise KafkaException(KafkaError(KafkaError._FATAL, WORDS_LOST, True)) from None
            raise

    return served


def group_commits(admin: AdminClient, group: str) -> list[ClientPartition]:
    """All offsets that the group has committed, with their metadata: also for topics that it reads no more. Those that
    can't be told are left out.

    To be asked seldom: where a broker goes away at the wrong moment, the client ends the process (librdkafka's issue
    4605). `commits_at` asks without that. Raises KafkaException, or TimeoutError, when the brokers don't answer.
    """
    request = [ConsumerGroupTopicPartitions(group)]
    answer = admin.list_consumer_group_offsets(request, request_timeout=ANSWER_TIMEOUT_S)[group]
    places: list[ClientPartition] = answer.result(ANSWER_TIMEOUT_S + 1).topic_partitions
    return [one for one in places if one.error is None and one.offset != OFFSET_INVALID]


def commits_at(client: Mapping[str, str], group: str, places: Sequence[ClientPartition]) -> list[ClientPartition]:
    """Offsets that the group has committed for these partitions, with their metadata; without a commit, or where it
    can't be told, a partition is left out. Joins no group, and waits for no transaction.

    Raises KafkaException when the brokers don't answer.
    """
    if not places:
        return []
    consumer = Consumer(uncommitted_commit_reader_settings(client, group))
    try:
        commits: list[ClientPartition] = consumer.committed(list(places), timeout=ANSWER_TIMEOUT_S)
    finally:
        consumer.close()
    return [one for one in commits if one.error is None and one.offset >= 0]
