"""The topics that have the group's name in theirs: what they are copied to, and how their records change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, ResourceType

from policies.kafka_clients import AdminClient
from policies.topic.kafka_tools import tools_of
from sidecar.kafka.topics import MissingTopicError, ensure_topic, topic_ids
from sidecar.operations.renaming.errors import RenameError
from sidecar.operations.renaming.group_commits import ANSWER_S, kafka_failures
from sidecar.operations.renaming.rewriting import as_it_is, change_value, renamed_block, schedule_value
from sidecar.operations.renaming.topic_copy import Change
from sidecar.settings.settings import Settings

STAMPED: Final = "message.timestamp.type"
_OF_ITS_REPLICAS: Final = ".throttled.replicas"  # where the old topic's are, and nobody else's


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """One of them under both names. `keeps_times`: its records must not get the time of the copy."""

    old: str
    new: str
    change: Change
    keeps_times: bool = False


@dataclass(frozen=True, slots=True)
class TopicShape:
    """Partition count, replicas and settings that a topic is made with."""

    partitions: int
    replicas: int
    config: Mapping[str, str]


def group_topics(old: Settings, new: Settings) -> Iterator[GroupTopic]:
    """Topics that change their name with the group, the ledger first. One that a setting names is the same for both."""
    ledger: Change = partial(_in_ledger, new.group)
    for topic in (
        GroupTopic(old.ledger_topic, new.ledger_topic, ledger),
        GroupTopic(old.schedule_topic, new.schedule_topic, schedule_value, keeps_times=True),
        GroupTopic(old.changes_topic, new.changes_topic, change_value),
        GroupTopic(old.redrive_topic, new.redrive_topic, as_it_is),
        GroupTopic(old.redriven_topic, new.redriven_topic, as_it_is),
        GroupTopic(old.pause_topic, new.pause_topic, as_it_is),
        GroupTopic(old.audit_topic, new.audit_topic, as_it_is),
    ):
        if topic.old != topic.new:
            yield topic


def _in_ledger(group: str, _key: bytes, value: bytes | None, _appended_ms: int) -> bytes | None:
    return renamed_block(value, group)


class TopicAdmin:
    """Questions about topics, and changes to them. Raises RenameError."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._admin = AdminClient(dict(client))
        self._tools = tools_of(client)

    def shape(self, name: str) -> TopicShape | None:
        """Shape of a topic as it is now; None: there is no such topic."""
        with kafka_failures(f"topic {name}"):
            found = self._admin.list_topics(name, timeout=ANSWER_S).topics[name]
            if found.error is not None or not found.partitions:
                return None
            resource = ConfigResource(ResourceType.TOPIC, name)
            entries = self._admin.describe_configs([resource])[resource].result(ANSWER_S)
        config = {
            key: entry.value
            for key, entry in entries.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            and entry.value is not None
            and not key.endswith(_OF_ITS_REPLICAS)
        }
        replicas = len(next(iter(found.partitions.values())).replicas)
        return TopicShape(len(found.partitions), replicas, config)

    def make(self, name: str, like: TopicShape, keeps_times: bool) -> None:
        """Make a topic like another, if it is missing. With `keeps_times` records keep the times that they are written
        with until `finish`.
        """
        config = {**like.config, STAMPED: "CreateTime"} if keeps_times else like.config
        with kafka_failures(f"making topic {name}"):
            try:
                partitions = ensure_topic(self._admin, name, like.partitions, like.replicas, config, self._tools)
            except MissingTopicError as error:
                raise RenameError(str(error)) from error
        if keeps_times:
            self._stamp(name, "CreateTime")  # a sidecar that was started too early may have made it
        if partitions != like.partitions:
            raise RenameError(f"topic {name} has {partitions} partitions, and must have {like.partitions}: delete it")

    def finish(self, name: str, like: TopicShape) -> None:
        """From now on brokers stamp its records as they stamp those of the other one."""
        if (stamped := like.config.get(STAMPED)) is not None:
            self._stamp(name, stamped)

    def _stamp(self, name: str, stamped: str) -> None:
        entry = ConfigEntry(STAMPED, stamped, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        with kafka_failures(f"setting {STAMPED} of {name}"):
            self._admin.incremental_alter_configs([resource])[resource].result(ANSWER_S)

    def id(self, name: str) -> str:
        """Kafka's id of it; "" where brokers have none."""
        with kafka_failures(f"topic {name}"):
            return topic_ids(self._admin, [name]).get(name, "")
