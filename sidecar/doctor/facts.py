"""Facts and findings: what the checks of `tickover doctor` are told by the brokers, and what they say of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from policies.topic.kafka_tools import KafkaTools
from sidecar.doctor.acl import Operation, Right, kafka_commands, literal


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. `config` is empty when it could not be read; then `config_problem` says why."""

    partitions: int = 1
    replicas: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    config_problem: str = ""

    def number(self, name: str) -> int | None:
        """A numeric setting; None when it is not known."""
        text = self.config.get(name, "")
        return int(text) if text.lstrip("-").isdigit() else None

    @property
    def compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Facts that the brokers tell. `producer_bytes_max` is the largest record that tickover's producer sends.

    `hidden` are topics that `principal` may not see: whether they are there isn't known.
    """

    tools: KafkaTools
    brokers: int
    topics: Mapping[str, TopicFacts]
    producer_bytes_max: int
    principal: str = "User:PRINCIPAL"
    hidden: frozenset[str] = frozenset()
    # Settings of new topics that they refuse, with what they take in their place; None: only their own.
    taken: Mapping[str, str | None] = field(default_factory=dict)
    takes_replicas: bool = True  # False: only their own number

    def allow(self, topic: str, operation: Operation) -> str:
        """The command that gives a right."""
        right = Right("topic", literal(topic), (operation,), "")
        [command] = kafka_commands([right], self.principal, self.tools)
        return command

    def create(self, topic: str, partitions: int, replicas: int = -1, config: Mapping[str, str] | None = None) -> str:
        """The command that creates a topic."""
        asked = {name: self.taken.get(name, value) for name, value in (config or {}).items()}
        options = "".join(f" --config {name}={value}" for name, value in asked.items() if value is not None)
        factor = f" --replication-factor {replicas}" if replicas > 0 and self.takes_replicas else ""
        return self.tools.command(
            "kafka-topics.sh", f"--create --topic {topic} --partitions {partitions}{factor}{options}"
        )

    def widen(self, topic: str, partitions: int) -> str:
        """The command that gives a topic more partitions."""
        return self.tools.command("kafka-topics.sh", f"--alter --topic {topic} --partitions {partitions}")

    def alter(self, topic: str, setting: str) -> str:
        """The command that changes a setting of a topic."""
        return self.tools.command(
            "kafka-configs.sh", f"--alter --entity-type topics --entity-name {topic} --add-config {setting}"
        )


class Severity(Enum):
    """An error keeps tickover from working, a warning takes something from its promises."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One thing looked at. `fix` is a line that mends it, a command where there is one; else empty."""

    severity: Severity
    part: str
    what: str
    fix: str = ""


class Examined(NamedTuple):
    """Findings of one look, and when it was, epoch ms."""

    findings: Sequence[Finding]
    at_ms: int
