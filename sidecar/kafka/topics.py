"""The topics that are tickover's own: made when missing, read back in a recovery, and the sources to consume."""

import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import NewTopic, TopicDescription

from policies.glob import compile_globs, is_exact
from policies.kafka_clients import AdminClient, Consumer
from policies.model import Policy
from policies.retention import JOBS_KEPT_MS
from policies.table import DEAD_LETTER_SUFFIX
from policies.topic.topic import SIZE, created_as_taken, refusal_of, tell_taken
from sidecar.kafka.producers import ABSENT, has_controller
from sidecar.ledger.topic import LedgerError, LedgerRecord, LedgerUnavailable
from sidecar.settings.settings import Settings

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
ANSWER_S: Final = 10.0
CREATE_FOR_S: Final = 10.0
CREATE_AGAIN_S: Final = 0.5
KNOWN_FOR_S: Final = 30.0  # how long brokers are asked for the size of a topic that exists
PASSING: Final = frozenset(  # too few brokers may also be brokers that are not quite there yet
    {KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.NOT_CONTROLLER, KafkaError.THROTTLING_QUOTA_EXCEEDED}
    | {KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
)
AWAY: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
    | {KafkaError.REQUEST_TIMED_OUT, KafkaError.NETWORK_EXCEPTION, KafkaError.BROKER_NOT_AVAILABLE}
    | {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_CONTROLLER}
    | {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
)
NO_TOPIC_ID: Final = "A" * 22  # 16 zero bytes in base64
READ_BATCH: Final = 500
READ_WAIT_S: Final = 0.05  # a read returns at once only when it is full
STALLED_READS_MAX: Final = 300  # reads in a row without a record, each READ_WAIT_S long: the ledger is cut short


class MissingTopicError(Exception):
    """A topic of tickover's own is missing and can't be created, or the brokers don't tell its size."""


def is_away(error: BaseException) -> bool:
    """Brokers don't answer, or one that is needed: the same may be right a moment later."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, TimeoutError) or (isinstance(chain, KafkaException) and chain.args[0].code() in AWAY):
            return True
        chain = chain.__cause__
    return False


def ledger_config(retention_ms: int) -> dict[str, str]:
    """Broker settings of the ledger: append time, because it measures our clock against the brokers'."""
    return {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": str(retention_ms),
        "max.message.bytes": str(10 << 20),
    }


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

# Only the last word about a schedule counts, and it counts for ever. It begins when the broker has it.
SCHEDULE_CONFIG: Final = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


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
        if error is None or error.code() not in PASSING:
            break
        pause(CREATE_AGAIN_S)
        error = _create(admin, topic)
    if error is None:
        log.info("topic created", extra={"topic": name, "partitions": partitions})
    elif error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
        settings = " ".join(f"--config {key}={value}" for key, value in config.items())
        hint = f"\n(where the brokers refuse {SIZE}, leave it out)" if SIZE in config else ""
        raise MissingTopicError(
            f"topic {name} is missing and can't be created ({error.str()}); create it by:\n"
            f"kafka-topics.sh --create --topic {name} --partitions {partitions} {settings}{hint}"
        )
    return _known_partition_count(admin, name, pause)


def _known_partition_count(admin: AdminClient, name: str, pause: Callable[[float], None]) -> int:
    """The size of a topic that exists. Brokers that have just started may not know it yet: asked until one does.

    Never guessed: a ledger's blocks would be written to, and looked for in, partitions where they aren't.
    """
    for _ in range(round(KNOWN_FOR_S / CREATE_AGAIN_S)):
        if count := _partition_count(admin, name):
            return count
        pause(CREATE_AGAIN_S)
    raise MissingTopicError(
        f"topic {name} exists, but for {KNOWN_FOR_S:.0f} s no broker has said how many partitions it has; start again "
        f"when they do:\nkafka-topics.sh --describe --topic {name}"
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


class KafkaLedgerLog:
    """Reads ledger partitions for a recovery. Blocking; used by the recovery thread alone."""

    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        self._topic = topic
        self._settings = {
            **settings,
            "group.id": f"{topic}.recovery",  # never joined: the client wants a name even to read without a group
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        self._consumer: Consumer | None = None

    def bounds(self, partition: int) -> tuple[int, int]:
        """(first offset still there, next offset to be written)."""
        try:
            low, high = self._open().get_watermark_offsets(TopicPartition(self._topic, partition), timeout=ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART and self._is_gone():
                raise LedgerError(f"the ledger topic {self._topic} is gone: it was deleted") from error
            self._consumer = (
                None  # it may believe for minutes what a starting broker said: the next try is with another
            )
            raise LedgerUnavailable(f"no answer about {self._topic}/{partition}: {error.args[0].str()}") from error
        return low, high

    def _written_ends(self, partitions: Collection[int]) -> dict[int, int]:
        """Where these partitions end, whether readers of committed records may see it yet or not."""
        if not partitions:
            return {}
        anyone = Consumer({**self._settings, "isolation.level": "read_uncommitted"})
        try:
            places = {partition: TopicPartition(self._topic, partition) for partition in partitions}
            return {
                partition: anyone.get_watermark_offsets(place, timeout=ANSWER_S, cached=False)[1]
                for partition, place in places.items()
            }
        except KafkaException as error:
            raise LedgerUnavailable(f"no answer about the end of {self._topic}: {error.args[0].str()}") from error
        finally:
            anyone.close()

    def _is_gone(self) -> bool:
        """True when the brokers say so; their silence means nothing."""
        try:
            error = self._open().list_topics(self._topic, timeout=ANSWER_S).topics[self._topic].error
        except KafkaException:
            return False
        return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    def read(self, starts: Mapping[int, int], at_least: Mapping[int, int]) -> Iterator[LedgerRecord]:
        """See `LedgerLog.read`.

        The end is asked for first: while others go on writing to a partition, no reader is ever told of an end.
        """
        consumer = self._open()
        ends = {partition: self.bounds(partition)[1] for partition in starts}
        ends |= self._written_ends(starts.keys() - at_least.keys())
        consumer.assign([TopicPartition(self._topic, partition, start) for partition, start in starts.items()])
        position = dict(starts)
        stalled = 0

        def unfinished() -> list[int]:
            return [p for p, place in position.items() if place < ends[p] or place <= at_least.get(p, -1)]

        try:
            while reading := unfinished():
                messages = consumer.consume(READ_BATCH, READ_WAIT_S)
                stalled = stalled + 1 if not messages else 0
                if stalled > STALLED_READS_MAX:
                    last = {partition: self.bounds(partition)[1] for partition in reading}
                    written = self._written_ends(reading)
                    if all(written[partition] > at_least.get(partition, -1) for partition in reading):
                        raise LedgerUnavailable(
                            f"an open transaction holds back the readers of {self._topic} (by partition, since offset: "
                            f"{last}); when it stays, `tickover doctor` says how to end it"
                        )
                    raise LedgerError(
                        f"the ledger {self._topic} ends at {last} (by partition), but commits say that it was written "
                        f"up to {dict(at_least)}: it was truncated, created again, or has other partitions than before"
                    )
                for message in messages:
                    partition = message.partition() or 0
                    error = message.error()
                    if error is None:
                        position[partition] = (message.offset() or 0) + 1
                        yield LedgerRecord(
                            partition, message.offset() or 0, message.key() or b"", message.value() or b""
                        )
                    elif error.code() == KafkaError._PARTITION_EOF:  # past control records too, which nobody is given
                        position[partition] = max(position[partition], message.offset() or 0)
                    else:
                        log.warning("reading the ledger", extra={"error": str(error)})
        finally:
            consumer.unassign()

    def close(self) -> None:
        """Twice is harmless."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        return self._consumer
