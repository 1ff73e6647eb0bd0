"""The policy topic itself: made when it is missing, never changed when it is there."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic, TopicMetadata

from policies.errors import PolicyStoreUnavailable
from policies.kafka_clients import AdminClient
from policies.topic.kafka_tools import tools_of

ASK_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.05
TOPIC_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

SIZE: Final = "max.message.bytes"
SMALLER_BYTES: Final = 8 << 20  # as much as many managed clusters allow
REPLICAS_BY_DEFAULT: Final = -1
_OF_SETTINGS: Final = frozenset(
    {KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION, KafkaError.INVALID_REPLICATION_FACTOR}
)

_logger = logging.getLogger(__name__)


def ensure_topic(settings: Mapping[str, str], topic: str, replication_factor: int, timeout_s: float) -> None:
    """Return when the topic is there. Raises PolicyStoreUnavailable."""
    deadline_s = time.monotonic() + timeout_s
    admin = AdminClient(dict(settings))
    found = _find(admin, topic, deadline_s)
    if found is None:
        _create(admin, settings, topic, replication_factor, timeout_s)
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


def _create(
    admin: AdminClient, settings: Mapping[str, str], topic: str, replication_factor: int, timeout_s: float
) -> None:
    def create(wanted: NewTopic) -> KafkaError | None:
        try:
            return refusal_of(admin.create_topics([wanted], request_timeout=timeout_s)[topic], timeout_s + 1)
        except TimeoutError as error:
            raise PolicyStoreUnavailable(_advice(settings, topic, "no answer")) from error

    wanted = NewTopic(topic, 1, replication_factor, config=dict(TOPIC_SETTINGS))
    error, taken = created_as_taken(create, wanted, lambda: len(admin.list_topics(timeout=timeout_s).brokers))
    tell_taken(wanted, taken)
    if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise PolicyStoreUnavailable(_advice(settings, topic, str(error)))


def refusal_of(created: "Future[None]", seconds: float) -> KafkaError | None:
    """Wait for the brokers' error about a topic that is being created; None: it is there. Raises TimeoutError."""
    try:
        created.result(seconds)
    except KafkaException as error:
        refusal: KafkaError = error.args[0]
        return refusal
    return None


def created_as_taken(
    create: Callable[[NewTopic], KafkaError | None], wanted: NewTopic, brokers: Callable[[], int]
) -> tuple[KafkaError | None, NewTopic]:
    """Create a topic as it is wanted, or else as the brokers take it: with a smaller limit of messages, or by their own
    number of replicas. Returns what they said to what was wanted, None when there is a topic, and how it was created.

    `brokers`: how many there are. Where more replicas are wanted than that, brokers are missing, and it stays refused.
    """
    refusal = create(wanted)
    if refusal is not None and refusal.code() == KafkaError.INVALID_REPLICATION_FACTOR:
        if not 0 < wanted.replication_factor <= brokers():
            return refusal, wanted
        refusal = create(wanted)  # the one that was missing may have come since
    if refusal is None or refusal.code() not in _OF_SETTINGS:
        return refusal, wanted
    for other in _alternatives(wanted):
        if create(other) is None:
            return None, other
    return refusal, wanted


def tell_taken(wanted: NewTopic, taken: NewTopic) -> None:
    """Say in the log what a new topic has in place of what was wanted."""
    if taken is not wanted:
        size = (taken.config or {}).get(SIZE, "the brokers' default")
        replicas = "the brokers' default" if taken.replication_factor < 0 else taken.replication_factor
        about = {"topic": wanted.topic, SIZE: size, "replicas": replicas}
        _logger.warning("a topic was created with what the brokers take, as they refuse what was wanted", extra=about)


def _alternatives(wanted: NewTopic) -> Iterator[NewTopic]:
    """Topics that brokers may take in place of the one wanted; the nearest first."""
    settings = wanted.config or {}
    size = settings.get(SIZE)
    sizes: list[str | None] = [size]
    if size is not None:
        sizes += [str(SMALLER_BYTES), None] if int(size) > SMALLER_BYTES else [None]
    for replicas in dict.fromkeys((wanted.replication_factor, REPLICAS_BY_DEFAULT)):
        for other in sizes:
            if (replicas, other) != (wanted.replication_factor, size):
                config = {name: value for name, value in settings.items() if name != SIZE}
                config |= {} if other is None else {SIZE: other}
                yield NewTopic(wanted.topic, wanted.num_partitions, replicas, config=config)


def _advice(settings: Mapping[str, str], topic: str, problem: str) -> str:
    options = " ".join(f"--config {key}={value}" for key, value in TOPIC_SETTINGS.items())
    tools = tools_of(settings)
    command = tools.command("kafka-topics.sh", f"--create --topic {topic} --partitions 1 {options}")
    return f"topic {topic} is missing and cannot be created ({problem}); create it:\n{command}{tools.note}"
