"""Where the demo takes place: its topics, its policies and the settings of its sidecar."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import BaseModel
from redis.exceptions import RedisClusterException, RedisError

from sidecar.overflow.connection import connect
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.settings.settings import Settings

PARTITIONS: Final = 4
POLICIES_FILE: Final = "policies.yaml"
ANSWER_S: Final = 30.0
HORIZON_MS: Final = 3_000  # short, so that what waits longer really goes through the overflow
RETRIES: Final = 3
BACKOFF_MS: Final = 500
BACKOFF_FACTOR: Final = 2
BACKOFF_MAX_MS: Final = 4_000
GIVE_UP_ON: Final = "*.ValidationError"
CAMPAIGN: Final = "campaign"  # header of messages that no judge waits for
RATE: Final = "5/s"
RATE_LATER: Final = "2/s"  # of the second version
LOOK_AHEAD_MS: Final = 2_000  # short, so that little is held of a schedule that has ended
# Sections whose topic has the demo's own name, whatever is set: the demo's topics are deleted at the end.
NAMED_BY_GROUP: Final = ("ledger", "audit", "redrive", "changes", "schedules", "pauses")

POLICIES: Final = """\
name: {prefix}reminders
match: {{topics: ["{topics.reminders}"]}}
delay: {{default: 15m, max: 400d}}
target: {{allow: ["{topics.mail}", "{topics.push}"]}}
dead_letter: {{topic: "{topics.reminders_dead}"}}
---
name: {prefix}campaigns
match: {{topics: ["{topics.reminders}"], headers: {{{campaign}: "*"}}}}
delay: {{default: 15m, max: 400d}}
target: {{allow: ["{topics.newsletter}", "{topics.fax}"], rate: {rate}}}
dead_letter: {{topic: "{topics.reminders_dead}"}}
---
name: {prefix}orders-retry
match: {{topics: ["{topics.orders_retry}"]}}
retry:
  attempts: {retries}
  backoff: {{kind: exponential, initial: {initial_ms}, factor: {factor}, max: {max_ms}, jitter: none}}
  give_up_on: ["{give_up_on}"]
target: {{topic: "{topics.orders}", allow: ["{topics.orders}"]}}
dead_letter: {{topic: "{topics.orders_dead}"}}
"""


@dataclass(frozen=True, slots=True)
class DemoTopics:
    """The names of the demo's topics, all of which it creates."""

    reminders: str
    mail: str
    push: str
    newsletter: str
    fax: str
    reminders_dead: str
    orders: str
    orders_retry: str
    orders_dead: str
    quarantine: str
    policies: str

    @property
    def all(self) -> tuple[str, ...]:
        """Topics that the demo creates; the sidecar creates its own."""
        names = tuple(str(getattr(self, item.name)) for item in fields(self))
        return tuple(name for name in names if name != self.policies)

    @property
    def read(self) -> tuple[str, ...]:
        """Topics that the reports are made of, beside the ledger: sources and dead letters."""
        return (self.reminders, self.orders_retry, self.reminders_dead, self.orders_dead)

    @property
    def watched(self) -> tuple[str, ...]:
        """Where something may arrive that is judged."""
        return (self.mail, self.push, self.reminders_dead, self.orders, self.orders_dead, self.quarantine)


def demo_topics(prefix: str) -> DemoTopics:
    """Plain names with an empty prefix; another's cluster gets a prefix, so that nothing of it is touched."""
    return DemoTopics(
        reminders=f"{prefix}reminders",
        mail=f"{prefix}mail",
        push=f"{prefix}push",
        newsletter=f"{prefix}newsletter",
        fax=f"{prefix}fax",
        reminders_dead=f"{prefix}reminders-dlq",
        orders=f"{prefix}orders",
        orders_retry=f"{prefix}orders-retry",
        orders_dead=f"{prefix}orders-dlq",
        quarantine=f"{prefix or 'tickover.'}quarantine",
        policies=f"{prefix or 'tickover.'}policies",
    )


def policies_text(topics: DemoTopics, prefix: str, rate: str = RATE) -> str:
    """The policies file of the demo; `rate` is that of campaigns."""
    return POLICIES.format(
        prefix=prefix,
        topics=topics,
        campaign=CAMPAIGN,
        rate=rate,
        retries=RETRIES,
        initial_ms=BACKOFF_MS,
        factor=BACKOFF_FACTOR,
        max_ms=BACKOFF_MAX_MS,
        give_up_on=GIVE_UP_ON,
    )


def backoff_ms(failed_attempt: int) -> int:
    """Milliseconds that the policy above waits after this attempt has failed."""
    wait_ms = BACKOFF_MS
    for _ in range(1, failed_attempt):
        wait_ms *= BACKOFF_FACTOR
    return min(wait_ms, BACKOFF_MAX_MS)


def demo_settings(settings: Settings, group: str, topics: DemoTopics, bootstrap: str, directory: Path) -> Settings:
    """The user's settings with what makes them the demo's; `directory` is where the policies file is."""
    port = settings.api.port
    if "port" not in settings.api.model_fields_set and not _is_free(settings.api.host, port):
        port = 0
    schedules = settings.schedules
    if "look_ahead_ms" not in schedules.model_fields_set:
        schedules = schedules.model_copy(update={"look_ahead_ms": LOOK_AHEAD_MS})
    return settings.model_copy(
        update={
            "group": group,
            "instance_id": "",
            "sources": (),
            "start": "earliest",
            "horizon_ms": settings.horizon_ms if "horizon_ms" in settings.model_fields_set else HORIZON_MS,
            "data_dir": settings.data_dir if "data_dir" in settings.model_fields_set else directory / "data",
            "kafka": settings.kafka.model_copy(update={"bootstrap_servers": bootstrap}),
            **{name: _named_by_group(getattr(settings, name)) for name in NAMED_BY_GROUP},
            "schedules": _named_by_group(schedules),
            "policies": settings.policies.model_copy(
                update={"file": str(directory / POLICIES_FILE), "topic": topics.policies}
            ),
            "quarantine": settings.quarantine.model_copy(update={"topic": topics.quarantine}),
            "api": settings.api.model_copy(update={"port": port}),
        }
    )


def _named_by_group(section: BaseModel) -> BaseModel:
    """With the topics' names by the group, whatever is set."""
    topics = [name for name in type(section).model_fields if name == "topic" or name.endswith("_topic")]
    return section.model_copy(update=dict.fromkeys(topics, ""))


def create_topics(admin: AdminClient, topics: DemoTopics, replicas: int) -> None:
    """Make the demo's topics. Append time is the broker's word for when a record came. Raises KafkaException."""
    sent = (topics.reminders, topics.orders_retry)  # there the sender's time counts: the delay starts from it
    wanted = [
        NewTopic(
            name,
            PARTITIONS,
            replicas,
            config={"message.timestamp.type": "CreateTime" if name in sent else "LogAppendTime"},
        )
        for name in topics.all
    ]
    for created in admin.create_topics(wanted, operation_timeout=ANSWER_S).values():
        try:
            created.result(ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def remove_traces(client: Mapping[str, Any], topics: DemoTopics, settings: Settings) -> list[str]:
    """Delete what the demo made in a Kafka and Redis of the user's; returns what could not be deleted and why."""
    admin = AdminClient(dict(client))
    removals = {**admin.delete_topics(sorted({*topics.all, *settings.own_topics}), operation_timeout=ANSWER_S)}
    removals |= admin.delete_consumer_groups([settings.group], request_timeout=ANSWER_S)
    left = []
    for name, removal in removals.items():
        try:
            removal.result(ANSWER_S)
        except KafkaException as error:
            left.append(f"{name}: {error.args[0].str()}")
    if not settings.redis.embedded:
        try:
            _remove_keys(settings)
        except (RedisError, RedisClusterException, OverflowUnavailable) as error:
            left.append(f"keys in Redis: {error}")
    return left


def _remove_keys(settings: Settings) -> None:
    redis: Any = connect(settings.redis.url, settings.redis.client_options())
    try:
        for pattern in (f"{{{settings.group}:*", f"tickover:{settings.group}:*"):
            for key in redis.scan_iter(match=pattern, count=1_000):
                redis.unlink(key)
    finally:
        redis.close()


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
