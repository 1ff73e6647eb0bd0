"""Findings about brokers and topics. Brokers are asked within bounds, and nothing is written."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ClusterMetadata, ConfigResource, NewTopic, ResourceType, TopicMetadata

from policies.errors import NewerSchema, PolicyFileError
from policies.file import read_policies_file
from policies.kafka_clients import AdminClient, Consumer
from policies.model import Policy
from policies.retention import ledger_retention_ms
from policies.topic.kafka_tools import LOGIN_OPTION
from policies.topic.log import PolicyLog
from sidecar.doctor.acl import kafka_rights
from sidecar.doctor.facts import Cluster, Finding, Severity, TopicFacts
from sidecar.doctor.other_groups import findings_of, others_with
from sidecar.doctor.rights import findings, lacking, principal_of
from sidecar.doctor.topics import check_topics, matching
from sidecar.doctor.transactions import Transactions
from sidecar.kafka.commit_reader import group_commits
from sidecar.kafka.topic_follower import LogUnavailable, TopicFollower, TopicReader
from sidecar.kafka.topics import ledger_config, source_topics, taken_as
from sidecar.operations.jobs.transactional_sender import why_none
from sidecar.operations.schedules.schedule_book import ScheduleBook
from sidecar.settings.settings import Settings

CONNECT_TIMEOUT_S: Final = 4.0
ASK_TIMEOUT_S: Final = 2.0
READ_TIMEOUT_S: Final = 2.5
POLICY_RECORDS_MAX: Final = 100_000
READ_BATCH: Final = 500
SKEW_MAX_MS: Final = 1_000
PRODUCER_BYTES_DEFAULT: Final = 1_000_000  # librdkafka's message.max.bytes

_SILENT = logging.Logger("doctor.librdkafka", level=logging.CRITICAL)


# What may be told to everybody of why brokers can't be reached: no host, and no words of a client, which name one.
NO_ANSWER: Final = "no answer"
REFUSED: Final = "connection refused"
BAD_SETTING: Final = "a setting of kafka.client isn't accepted"
CAUSES: Final = {
    KafkaError._SSL: "TLS failed",
    KafkaError._AUTHENTICATION: "the login failed",
    KafkaError.SASL_AUTHENTICATION_FAILED: "the login failed",
    KafkaError._RESOLVE: "the host's name can't be resolved",
}


class Errors:
    """The last error that a client reported on its own: it says why a call found nobody."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """The error callback. That all brokers are down is the consequence, not the cause."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = error


class Unreachable(NamedTuple):
    """Brokers that can't be reached: the finding, which names them, and the kind of cause, which names nobody."""

    finding: Finding
    cause: str


def inspect_kafka(settings: Settings, wall_ms: Callable[[], int]) -> Iterator[Finding]:
    """All findings about brokers and topics; then, where a fix needs it, what to write into the file of the login."""
    needs_login = False
    for finding in _inspected(settings, wall_ms):
        needs_login |= LOGIN_OPTION in finding.fix
        yield finding
    if needs_login:
        yield Finding(Severity.OK, "commands", settings.kafka.tools.note.strip())


def why_unreachable(settings: Settings) -> Unreachable | None:
    """Why brokers don't answer within `CONNECT_TIMEOUT_S`; None: they do, or are embedded."""
    if settings.kafka.embedded:
        return None
    reached = _reach(settings)
    return reached if isinstance(reached, Unreachable) else None


def missing_rights(settings: Settings) -> list[Finding]:
    """Findings about rights that this process lacks, as far as the brokers tell; none where they don't answer."""
    reached = None if settings.kafka.embedded else _reach(settings)
    if reached is None or isinstance(reached, Unreachable):
        return []
    topics = {name: topic for name, topic in reached.metadata.topics.items() if topic.error is None}
    policies, _ = _policies(settings, reached.client, topics)
    lacks, _ = lacking(reached.admin, kafka_rights(settings, policies, topics).rights, list(topics))
    return [finding for finding in findings(lacks, settings) if finding.severity is Severity.ERROR]


class _Reached(NamedTuple):
    """Brokers that answer: a client for them, its settings, and what they say of their topics."""

    admin: AdminClient
    client: dict[str, Any]
    metadata: ClusterMetadata


def _reach(settings: Settings) -> _Reached | Unreachable:
    errors = Errors()
    client: dict[str, Any] = {
        **settings.kafka.client_properties(),
        "bootstrap.servers": settings.kafka.bootstrap_servers,
        "log_level": "0",
        "error_cb": errors.note,
    }
    try:
        admin = AdminClient(client, logger=_SILENT)
    except KafkaException as error:
        what = f"a setting of kafka.client is not accepted: {error.args[0].str()}"
        fix = "correct kafka.client (TICKOVER_KAFKA__CLIENT__...)"
        return Unreachable(Finding(Severity.ERROR, "brokers", what, fix), BAD_SETTING)
    try:
        return _Reached(admin, client, admin.list_topics(timeout=CONNECT_TIMEOUT_S))
    except KafkaException as error:
        admin.poll(0)  # lets the error callback say why
        return _unreachable(settings, errors.last or error.args[0])


def _inspected(settings: Settings, wall_ms: Callable[[], int]) -> Iterator[Finding]:
    if settings.kafka.embedded:
        yield Finding(Severity.OK, "brokers", f"`{settings.kafka.bootstrap_servers}`: `tickover run` starts its own")
        return
    reached = _reach(settings)
    if isinstance(reached, Unreachable):
        yield reached.finding
        return
    admin, client, metadata = reached
    topics = {name: topic for name, topic in metadata.topics.items() if topic.error is None}
    yield Finding(
        Severity.OK,
        "brokers",
        f"{len(metadata.brokers)} in cluster {metadata.cluster_id}",
    )
    policies, about_policies = _policies(settings, client, topics)
    yield from about_policies
    lacks, hidden = lacking(admin, kafka_rights(settings, policies, topics).rights, list(topics))
    yield from findings(lacks, settings)
    yield from _transactions(settings, client)
    sources = source_topics(settings, policies, topics)
    ours = _concerned(settings, topics, policies, sources)
    cluster = replace(
        _cluster(settings, admin, topics, ours, len(metadata.brokers)),
        principal=principal_of(settings),
        hidden=hidden,
        **_taken(settings, admin, policies, topics),
    )
    if cluster.taken or not cluster.takes_replicas:
        what = "they don't take the settings that tickover's own topics should have: the commands hold what they take"
        yield Finding(Severity.OK, "brokers", what)
    yield from check_topics(cluster, settings, policies)
    if settings.schedule_topic in topics:
        yield from _schedules(settings, client)
    if settings.start == "auto":
        yield from _new_group(settings, client, topics, sources)
    transactions = Transactions(admin, client, settings.kafka.tools, settings.group)
    yield from transactions.check(_partitions(topics, ours), _partitions(topics, sources))
    yield from _clock(settings, client, topics, wall_ms)


def _taken(
    settings: Settings, admin: AdminClient, policies: Sequence[Policy], topics: Collection[str]
) -> dict[str, Any]:
    """Fields of `Cluster` about topics that are still to be made: the ledger stands for all, as it asks for most."""
    missing = sorted(settings.own_topics.difference(topics))
    if not missing:
        return {}
    ledger = settings.ledger
    config = ledger_config(ledger.retention_ms or ledger_retention_ms(policies))
    wanted = NewTopic(missing[0], ledger.partitions, ledger.replication_factor, config=config)
    taken = taken_as(admin, wanted, ASK_TIMEOUT_S)
    given = taken.config or {}
    refused = {name: given.get(name) for name, value in config.items() if given.get(name) != value}
    return {"taken": refused, "takes_replicas": taken.replication_factor == wanted.replication_factor}


def _new_group(
    settings: Settings, client: dict[str, Any], topics: Collection[str], sources: Collection[str]
) -> Iterator[Finding]:
    try:
        others = others_with(partial(group_commits, client), settings.group, topics, sources)
    except KafkaException:
        return  # that commits can't be read is told where it matters
    yield from findings_of(settings.group, others)


def _transactions(settings: Settings, client: dict[str, Any]) -> Iterator[Finding]:
    """Kafka says only to who takes a transactional id whether it has them: one is taken, and nothing sent."""
    problem = why_none({**client, "logger": _SILENT}, settings.group)
    if problem:
        is_needed = settings.guarantee == "exactly_once"
        fix = "use brokers that have transactions; guarantee=at_least_once (TICKOVER_GUARANTEE) does without them"
        yield Finding(Severity.ERROR if is_needed else Severity.WARNING, "transactions", problem, fix)


def _schedules(settings: Settings, client: dict[str, Any]) -> Iterator[Finding]:
    """Schedules that a process of this version, on this machine, couldn't read."""
    book = ScheduleBook()
    follower = TopicFollower(TopicReader(client), settings.schedule_topic, book.apply)
    follower.start()
    try:
        follower.catch_up(READ_TIMEOUT_S)
    except LogUnavailable:
        pass  # that the topic can't be read is told where it matters; what was read is looked at
    finally:
        follower.stop()
    for name, known in sorted(book.unread().items()):
        if known.unread is not None:
            fix = "run a version that can read it, with a package tzdata that has its zone; other replicas may write it"
            yield Finding(Severity.WARNING, f"schedule {name}", known.unread.problem, fix)


def _unreachable(settings: Settings, error: KafkaError) -> Unreachable:
    fix = (
        "check that Kafka runs there, and kafka.bootstrap_servers (TICKOVER_KAFKA__BOOTSTRAP_SERVERS);"
        " where it wants TLS or a login, set kafka.client.security.protocol and its companions"
    )
    reason = error.str()
    what = f"no answer from {settings.kafka.bootstrap_servers}: {reason}"
    cause = CAUSES.get(error.code(), REFUSED if "refused" in reason else NO_ANSWER)
    return Unreachable(Finding(Severity.ERROR, "brokers", what, fix), cause)


def _policies(
    settings: Settings, client: dict[str, Any], topics: dict[str, TopicMetadata]
) -> tuple[list[Policy], list[Finding]]:
    """The policies in force: those of the topic, and over them those that the file will publish."""
    found: dict[str, Policy] = {}
    findings = []
    if settings.policies.topic in topics:
        try:
            found = _read_policies(settings.policies.topic, client)
        except (KafkaException, NewerSchema, TimeoutError) as error:
            fix = "allow this principal to read it, or correct policies.topic"
            findings.append(Finding(Severity.ERROR, "policies", f"their topic cannot be read: {error}", fix))
    if settings.policies.file:
        try:
            found |= {policy.name: policy for policy in read_policies_file(settings.policies.file)}
        except PolicyFileError as error:
            fix = f"correct it; `tickover policies validate {settings.policies.file}` checks it"
            findings.append(Finding(Severity.ERROR, "policies", str(error), fix))
    if found:
        findings.append(Finding(Severity.OK, "policies", f"{len(found)} in force"))
    elif not findings:
        fix = "tickover policies apply -f FILE, or policies.file (TICKOVER_POLICIES__FILE)"
        findings.append(Finding(Severity.WARNING, "policies", "there are none: every record would be quarantined", fix))
    return list(found.values()), findings


def _read_policies(topic: str, client: dict[str, Any]) -> dict[str, Policy]:
    log = PolicyLog()
    for message in _read(topic, client, start=0, count_max=POLICY_RECORDS_MAX):
        log.apply(message.offset(), message.value(), message.timestamp()[1])
    return {name: versioned.policy for name, versioned in log.table.policies.items()}


def _read(topic: str, client: dict[str, Any], start: int | None, count_max: int) -> Iterator[Any]:
    """Records of partition 0 from `start` (None: the last `count_max`) to its end as it is now."""
    consumer = Consumer(
        {
            **client,
            "group.id": "tickover-doctor",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
        },
        logger=_SILENT,
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=ASK_TIMEOUT_S)
        first = max(low, high - count_max) if start is None else max(low, start)
        consumer.assign([TopicPartition(topic, 0, first)])
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        position = first
        while position < min(high, first + count_max):
            for message in consumer.consume(READ_BATCH, 0.1):
                if message.error() is not None:
                    raise KafkaException(message.error())
                position = (message.offset() or 0) + 1
                yield message
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{topic} was read to {position} of {high} in {READ_TIMEOUT_S} s")
    finally:
        consumer.close()


def _concerned(
    settings: Settings, topics: dict[str, TopicMetadata], policies: Sequence[Policy], sources: Sequence[str]
) -> list[str]:
    """The existing topics that tickover reads or writes."""
    targets = {glob for policy in policies for glob in (policy.target.topic, *policy.target.allow) if glob}
    return sorted((settings.own_topics & set(topics)) | set(matching(targets, topics)) | set(sources))


def _partitions(topics: dict[str, TopicMetadata], names: Sequence[str]) -> list[tuple[str, int]]:
    return [(name, partition) for name in names for partition in topics[name].partitions]


def _cluster(
    settings: Settings, admin: AdminClient, topics: dict[str, TopicMetadata], ours: Sequence[str], brokers: int
) -> Cluster:
    facts = {name: _facts(topic) for name, topic in topics.items()}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in ours]
    answers = admin.describe_configs(resources, request_timeout=ASK_TIMEOUT_S) if resources else {}
    for resource, answer in answers.items():
        topic = topics[resource.name]
        try:
            entries = answer.result(timeout=ASK_TIMEOUT_S + 1)
        except KafkaException as error:
            facts[resource.name] = _facts(topic, problem=str(error.args[0].str()))
        except TimeoutError:
            facts[resource.name] = _facts(topic, problem="no answer")
        else:
            config = {name: entry.value for name, entry in entries.items() if entry.value is not None}
            facts[resource.name] = _facts(topic, config)
    producer_bytes_max = int(settings.kafka.client_properties().get("message.max.bytes", PRODUCER_BYTES_DEFAULT))
    return Cluster(settings.kafka.tools, brokers, facts, producer_bytes_max)


def _facts(topic: TopicMetadata, config: dict[str, str] | None = None, problem: str = "") -> TopicFacts:
    replicas = min((len(partition.replicas) for partition in topic.partitions.values()), default=1)
    return TopicFacts(len(topic.partitions), replicas, config or {}, problem)


def _clock(
    settings: Settings, client: dict[str, Any], topics: dict[str, TopicMetadata], wall_ms: Callable[[], int]
) -> Iterator[Finding]:
    """Compare with the broker's clock without writing: nothing it has stamped may lie in our future."""
    stamped = []
    for topic in {settings.ledger_topic, settings.policies.topic} & set(topics):
        try:
            records = list(_read(topic, client, start=None, count_max=1))
        except (KafkaException, TimeoutError):
            continue  # that the topic cannot be read is told where it matters
        stamped += [stamp for kind, stamp in (m.timestamp() for m in records) if kind == TIMESTAMP_LOG_APPEND_TIME]
    ahead_ms = max(stamped, default=0) - wall_ms()
    if ahead_ms > SKEW_MAX_MS:
        what = f"this machine's clock is at least {ahead_ms} ms behind the broker's: records would fire late"
        yield Finding(Severity.WARNING, "clock", what, "synchronise the clocks (chrony or systemd-timesyncd)")
