"""Topics: tickover's own, made when missing; sizes and Kafka's ids of any; and the sources to consume."""

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import NewTopic, TopicDescription

from policies.glob import compile_globs, is_exact
from policies.kafka_clients import AdminClient
from policies.model import Policy
from policies.retention import JOBS_KEPT_MS, ledger_retention_ms, policies_of
from policies.table import DEAD_LETTER_SUFFIX, PolicyTable
from policies.topic.kafka_tools import KafkaTools
from policies.topic.topic import SIZE, created_as_taken, refusal_of, tell_taken
from sidecar.kafka.client_settings import admin_settings
from sidecar.kafka.errors import ABSENT, CREATING_PASSES
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.ledger.topic import LedgerTopic
from sidecar.settings.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
ID_ANSWER_S: Final = 5.0  # for each of two questions about ids: within a lease
CREATE_FOR_S: Final = 10.0
CREATE_AGAIN_S: Final = 0.5
KNOWN_FOR_S: Final = 30.0  # how long brokers are asked for the size of a topic that exists
NO_TOPIC_ID: Final = "A" * 22  # 16 zero bytes in base64
# What nobody could decide stays until somebody has looked at it.
QUARANTINE_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
CHANGES_PARTITIONS: Final = 2  # plans and progress; receipts
# Only the last word about a job counts, and after a month none.
JOBS_CONFIG: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(JOBS_KEPT_MS),
    "segment.ms": str(86_400_000),
}
# What was sent again is known for as long as the letters are there; whoever plans ends what is too old.
# Read from its beginning by every replica at its start: what is written over and over is compacted soon.
REDRIVEN_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(86_400_000),
    "segment.bytes": str(32 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
PAUSES_CONFIG: Final = {"cleanup.policy": "compact"}
# Only the last word about a schedule counts, and it counts for ever. It begins when the broker has it.
SCHEDULE_CONFIG: Final = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


class MissingTopicError(Exception):
    """A topic of tickover's own is missing and can't be created, or the brokers don't tell its size."""


def ledger_config(retention_ms: int) -> dict[str, str]:
    """Broker settings of the ledger: append time, because it measures our clock against the brokers'."""
    return {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(retention_ms),
        "max.message.bytes": str(10 << 20),
    }


def audit_config(retention_ms: int) -> dict[str, str]:
    """Broker settings of the audit topic."""
    return {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}


# tidy: a topic's own description
def ensure_topic(
    admin: AdminClient,
    name: str,
    partitions: int,
    replicas: int,
    config: Mapping[str, str],
    tools: KafkaTools,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Create a topic if it is missing; returns its partition count. Raises MissingTopicError with the way out.

    Brokers that have just started, or change their controller, are asked again for a while: `pause` sleeps for seconds.
    """
    count = _partition_count(admin, name)
    if count:
        return count
    topic = NewTopic(name, partitions, replicas, config=dict(config))
    error = _create(admin, topic)
    for _ in range(round(CREATE_FOR_S / CREATE_AGAIN_S)):
        if error is None or error.code() not in CREATING_PASSES:
            break
        pause(CREATE_AGAIN_S)
        error = _create(admin, topic)
    if error is None:
        log.info("topic created", extra={"topic": name, "partitions": partitions})
    elif error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
        settings = " ".join(f"--config {key}={value}" for key, value in config.items())
        factor = f" --replication-factor {replicas}" if replicas > 0 else ""
        hint = f"\n(where the brokers refuse {SIZE}, leave it out)" if SIZE in config else ""
        raise MissingTopicError(
            f"topic {name} is missing and can't be created ({error.str()}); create it by:\n"
            + tools.command("kafka-topics.sh", f"--create --topic {name} --partitions {partitions}{factor} {settings}")
            + hint
            + tools.note
        )
    return _known_partition_count(admin, name, tools, pause)


def _known_partition_count(admin: AdminClient, name: str, tools: KafkaTools, pause: Callable[[float], None]) -> int:
    """The size of a topic that exists. Brokers that have just started may not know it yet: asked until one does.

    Never guessed: a ledger's blocks would be written to, and looked for in, partitions where they aren't.
    """
    for _ in range(round(KNOWN_FOR_S / CREATE_AGAIN_S)):
        if count := _partition_count(admin, name):
            return count
        pause(CREATE_AGAIN_S)
    raise MissingTopicError(
        f"topic {name} exists, but for {KNOWN_FOR_S:.0f} s no broker has said how many partitions it has; start again "
        f"when they do:\n{tools.command('kafka-topics.sh', f'--describe --topic {name}')}{tools.note}"
    )


def _create(admin: AdminClient, topic: NewTopic) -> KafkaError | None:
    """Create a topic. Returns the brokers' error; None: the topic is there, as it was wanted or as they take it."""

    def create(wanted: NewTopic) -> KafkaError | None:
        return refusal_of(admin.create_topics([wanted], operation_timeout=TIMEOUT_S)[wanted.topic], TIMEOUT_S)

    def brokers() -> int:
        return len(admin.list_topics(topic.topic, timeout=TIMEOUT_S).brokers)

    error, taken = created_as_taken(create, topic, brokers)
    tell_taken(topic, taken)
    return error


def taken_as(admin: AdminClient, wanted: NewTopic, seconds: float) -> NewTopic:
    """How the brokers would take a topic that isn't there; as wanted where they don't say. Creates nothing."""

    def ask(topic: NewTopic) -> KafkaError | None:
        asked = admin.create_topics([topic], request_timeout=seconds, validate_only=True)
        try:
            return refusal_of(asked[topic.topic], seconds + 1)
        except TimeoutError:
            return KafkaError(KafkaError._TIMED_OUT)

    return created_as_taken(ask, wanted, lambda: len(admin.list_topics(timeout=seconds).brokers))[1]


def _partition_count(admin: AdminClient, name: str) -> int:
    topic = admin.list_topics(name, timeout=TIMEOUT_S).topics[name]
    return 0 if topic.error is not None else len(topic.partitions)


def topic_ids(admin: AdminClient, names: Sequence[str], seconds: float = TIMEOUT_S) -> dict[str, str]:
    """Kafka's ids of topics; "" where brokers have none. Topics that aren't there are left out. Two questions, each of
    which waits for so many `seconds` at most.

    Raises KafkaException or TimeoutError when the brokers don't answer.
    """
    if not has_controller(admin, names[0], seconds):
        return dict.fromkeys(names, "")
    found = _described(admin, names, seconds, frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART}))
    return {name: topic_id_of(topic) for name, topic in found.items()}


def topic_sizes(admin: AdminClient, names: Collection[str] | None, seconds: float = TIMEOUT_S) -> dict[str, int]:
    """Partition counts of the topics that exist and that we may see, 0 while the brokers don't know one yet: of all
    where `names` is None, else of these alone. A cluster may have thousands of others.

    Raises KafkaException or TimeoutError when the brokers don't answer.
    """
    if names is None:
        return {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=seconds).topics.items()}
    if not names:
        return {}
    asked = sorted(names)
    if not has_controller(admin, asked[0], seconds):
        return topic_sizes(admin, None, seconds)
    return {name: len(topic.partitions) for name, topic in _described(admin, asked, seconds, ABSENT).items()}


def _described(
    admin: AdminClient, names: Sequence[str], seconds: float, absent: Container[int]
) -> dict[str, TopicDescription]:
    """Descriptions of topics by name, as brokers give them; topics with one of the `absent` errors are left out."""
    found: dict[str, TopicDescription] = {}
    for name, answer in admin.describe_topics(TopicCollection(list(names)), request_timeout=seconds).items():
        try:
            found[name] = answer.result(seconds + 1)  # the request's own limit comes first
        except KafkaException as error:
            if error.args[0].code() not in absent:
                raise
    return found


def refusals(admin: AdminClient, names: Collection[str], seconds: float) -> dict[str, str]:
    """Brokers' words about those topics that we may not see; "" where there is no such topic, or we see it. What nobody
    answers for is left out.
    """
    found: dict[str, str] = {}
    if not names or not has_controller(admin, min(names), seconds):
        return found
    for name, answer in admin.describe_topics(TopicCollection(sorted(names)), request_timeout=seconds).items():
        try:
            answer.result(seconds + 1)
        except TimeoutError:
            continue
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = error.args[0].str()
                continue
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
        found[name] = ""
    return found


def topic_id_of(described: TopicDescription) -> str:
    """Kafka's id of a topic as text; "" where brokers have none, which the client shows as zero."""
    text = str(described.topic_id)
    return "" if text == NO_TOPIC_ID else text


def source_names(globs: Iterable[str]) -> set[str] | None:
    """The only topics that can be sources by these globs; None where one has a wildcard."""
    names = set(globs)
    return names if all(is_exact(name) for name in names) else None


def source_topics(settings: Settings, policies: Sequence[Policy], existing: Iterable[str]) -> list[str]:
    """The existing topics that are consumed: what the settings name, else what the policies match.

    Never a reserved one. One that holds dead letters must be meant, by its name or a glob that ends in
    `-dlq`: else `orders-*` would take in `orders-eu-dlq`, and what was given up would be delivered after all.
    """
    globs = settings.sources or {glob for policy in policies for glob in policy.match.topics}
    anything = compile_globs(globs)
    meant = compile_globs(glob for glob in globs if is_exact(glob) or glob.endswith(DEAD_LETTER_SUFFIX))
    named = [policy.dead_letter.topic for policy in policies if policy.dead_letter]
    letters = compile_globs([*settings.dead_letters.topics, *named])
    reserved = settings.reserved_topics
    if anything is None:
        return []
    return sorted(
        name
        for name in existing
        if name not in reserved
        and anything.matches(name)
        and not (letters and letters.matches(name) and not (meant and meant.matches(name)))
    )


def ensure_own_topics(admin: AdminClient, settings: Settings, table: PolicyTable) -> LedgerTopic:
    """Returns the ledger. Raises MissingTopicError with the way out."""
    ledger, replicas, tools = settings.ledger, settings.ledger.replication_factor, settings.kafka.tools
    config = ledger_config(ledger.retention_ms or ledger_retention_ms(policies_of(table)))
    partitions = ensure_topic(admin, settings.ledger_topic, ledger.partitions, replicas, config, tools)
    ensure_topic(admin, settings.quarantine.topic, 1, replicas, QUARANTINE_CONFIG, tools)
    ensure_topic(admin, settings.audit_topic, 1, replicas, audit_config(settings.audit.retention_ms), tools)
    ensure_topic(admin, settings.redrive_topic, 1, replicas, JOBS_CONFIG, tools)
    ensure_topic(admin, settings.redriven_topic, 1, replicas, REDRIVEN_CONFIG, tools)
    ensure_topic(admin, settings.schedule_topic, 1, replicas, SCHEDULE_CONFIG, tools)
    ensure_topic(admin, settings.pause_topic, 1, replicas, PAUSES_CONFIG, tools)
    found = ensure_topic(admin, settings.changes_topic, CHANGES_PARTITIONS, replicas, JOBS_CONFIG, tools)
    if found < CHANGES_PARTITIONS:
        more = f"--alter --topic {settings.changes_topic} --partitions {CHANGES_PARTITIONS}"
        raise MissingTopicError(
            f"topic {settings.changes_topic} has {found} partition, and receipts need a second; add it by:\n"
            f"{tools.command('kafka-topics.sh', more)}{tools.note}"
        )
    ledger_id = topic_ids(admin, [settings.ledger_topic]).get(settings.ledger_topic, "")
    return LedgerTopic(settings.ledger_topic, partitions, settings.group, ledger_id, ledger.when_lost)


class TopicIds:
    """Kafka's ids of topics, as jobs ask for them: the offsets of a plan are of a topic, not of its name. For any
    thread; each question has a client of its own, since it is seldom asked. Methods raise LogUnavailable.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = admin_settings(client)

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Ids by name, of those topics that are there; "" where the cluster has no ids."""
        if not topics:
            return {}
        try:
            return topic_ids(AdminClient(self._client), sorted(topics), ID_ANSWER_S)
        except (KafkaException, TimeoutError) as error:
            raise LogUnavailable(f"no answer about the ids of topics: {error}") from None

    def of_one(self, topic: str) -> str:
        """The id of a topic that must be there; "" where the cluster has no ids."""
        found = self.of([topic])
        if topic not in found:
            raise LogUnavailable(f"the topic {topic} isn't there at the moment")
        return found[topic]


def has_controller(admin: AdminClient, topic: str, seconds: float) -> bool:
    """Whether the cluster has a controller, of which the client's admin calls ask. librdkafka's mock has none, and they
    would wait for one without end. Blocks for `seconds` at most. Raises KafkaException.
    """
    cluster = admin.list_topics(topic, timeout=seconds)
    return cluster.controller_id in cluster.brokers
