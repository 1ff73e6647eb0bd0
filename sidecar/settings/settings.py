"""Every setting, once: its name, type, unit, limits and default.

Strength: command line > environment (`TICKOVER_`, `__` for nesting) > YAML file > the defaults here.
Durations are `250ms`, `90s`, `15m`, `2h`, `3d` (a bare number is milliseconds), sizes `64MB`, `256KiB`, `512MiB`
or bytes. An attribute that holds a duration ends in `_ms`; the name that users write does not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, WithJsonSchema, model_validator

from policies.model import DELAY_MAX_DEFAULT_MS
from policies.topic.kafka_tools import KafkaTools, tools_of
from sidecar.model.reserved_topics import ReservedTopics
from sidecar.settings.api import ApiSettings
from sidecar.settings.loading import ConfigError, explain, gather, nest
from sidecar.settings.operations import (
    AuditSettings,
    ChangesSettings,
    DeadLettersSettings,
    OtelSettings,
    PausesSettings,
    RedriveSettings,
    SchedulesSettings,
)
from sidecar.settings.redis import EMBEDDED, RedisSettings
from sidecar.settings.types import (
    CONTENT_WHILE_RUNNING,
    DURATION_PATTERN,
    WHILE_RUNNING,
    AnyCase,
    Bytes,
    Client,
    Milliseconds,
    Replicas,
    Section,
    Topic,
    TopicGlobs,
    TopicOrDefault,
    data_dir,
)

HOUR_MS: Final = 3_600_000
PROCESSES_MAX: Final = 64
DAY_MS: Final = 24 * HOUR_MS
EMBEDDED_JAVA: Final = "embedded-java"
EMBEDDED_ADDRESS: Final = "localhost:9092"
MESSAGE_BYTES_MIN: Final = 1_000_000  # what tickover writes to its own topics fits into it; librdkafka's default

RETENTION_SCHEMA: Final = {
    "anyOf": [
        {"type": "string", "pattern": DURATION_PATTERN},
        {"type": "integer", "minimum": HOUR_MS},
        {"enum": ["", None]},
    ]
}

__all__ = ["ConfigError", "Settings", "load_settings"]


class LedgerSettings(Section):
    """The topic in which every settlement is written."""

    topic: TopicOrDefault = Field(default="", description="Name; empty: tickover.<group>.ledger")
    partitions: int = Field(
        default=8, ge=1, le=1_000, description="Partitions when it is created, 1 to 1,000; fixed afterwards"
    )
    replication_factor: Replicas = Field(
        default=-1, description="Replicas when it is created; -1: the broker's default"
    )
    retention_ms: Annotated[Milliseconds | None, Field(ge=HOUR_MS), WithJsonSchema(RETENTION_SCHEMA)] = Field(
        default=None,
        alias="retention",
        description="At least 1h; empty: as long as the policies may hold a record + 7d",
    )
    when_lost: Annotated[Literal["refuse", "continue"], AnyCase] = Field(
        default="refuse",
        description="What to do where the ledger was cut, made anew, given more partitions, or has expired with its "
        "commits. refuse: end with words; continue: go on from the commits, else where `start` says, and maybe repeat",
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_automatic(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("retention") == "":
            return {key: value for key, value in values.items() if key != "retention"}
        return values


class PoliciesSettings(Section):
    """Where the policies are."""

    file: str = Field(
        default="", json_schema_extra=CONTENT_WHILE_RUNNING,
        description="YAML file of policies that this process publishes, at start and when it changes; empty: none",
    )  # fmt: skip
    topic: Topic = Field(default="tickover.policies", description="The policy topic: the one truth for all replicas")


class QuarantineSettings(Section):
    """Where records go that cannot be decided."""

    topic: Topic = Field(default="tickover.quarantine", description="The quarantine topic")


class WheelSettings(Section):
    """How much may be held in memory. At a limit the cursor stops and intake goes on into the overflow."""

    records_max: int = Field(
        default=500_000,
        ge=1_000,
        le=50_000_000,
        description="Records in the wheel or on their way out, 1,000 to 50,000,000",
    )
    bytes_max: Bytes = Field(
        default=512 << 20, ge=1 << 20, le=1 << 40, description="Bytes of these records, 1MiB to 1TiB"
    )


class IntakeSettings(Section):
    """Limits of what is taken in one turn, and of what one record may carry."""

    batch: int = Field(
        default=500, ge=1, le=10_000, description="Records consumed in one turn of the engine, 1 to 10,000"
    )
    headers_max: int = Field(
        default=1_000,
        ge=16,
        le=100_000,
        description="Headers of one record, 16 to 100,000; with more it is quarantined",
    )
    header_bytes_max: Bytes = Field(
        default=256 << 10, ge=4 << 10, le=64 << 20, description="Bytes of one record's headers, 4KiB to 64MiB"
    )
    timestamp_age_max_ms: Milliseconds = Field(
        default=3_600_000,
        ge=60_000,
        le=DELAY_MAX_DEFAULT_MS,
        alias="timestamp_age_max",
        description="How far a producer's timestamp (CreateTime) may be from when the record is read, 1m to 400d. A "
        "retry with an older one counts from when it is read",
    )


class KafkaSettings(Section):
    """The brokers, and librdkafka's own settings."""

    bootstrap_servers: str = Field(
        default=EMBEDDED,
        min_length=1,
        description="host:port list of the brokers; `embedded` starts tickover's reference broker, `embedded-java` a "
        "real one from Maven jars (Java 17, Maven)",
    )
    client: Client = Field(
        default_factory=dict,
        description="librdkafka settings by their dotted names, for all clients alike",
    )

    @property
    def embedded(self) -> bool:
        return self.bootstrap_servers in (EMBEDDED, EMBEDDED_JAVA)

    @property
    def embedded_java(self) -> bool:
        return self.bootstrap_servers == EMBEDDED_JAVA

    def client_properties(self) -> dict[str, str]:
        """`client` with its secrets in the clear, for librdkafka only; `bootstrap.servers` is not in it."""
        return {
            key: value.get_secret_value() if isinstance(value, SecretStr) else value
            for key, value in self.client.items()
        }

    @property
    def tools(self) -> KafkaTools:
        """How Kafka's own tools reach these brokers, for commands that are printed."""
        brokers = EMBEDDED_ADDRESS if self.embedded else self.bootstrap_servers
        return tools_of({**self.client_properties(), "bootstrap.servers": brokers})

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if "bootstrap.servers" in self.client or "metadata.broker.list" in self.client:
            raise ValueError("brokers are named by kafka.bootstrap_servers, not in kafka.client")
        return self

    @model_validator(mode="after")
    def _classic_group(self) -> Self:
        if str(self.client.get("group.protocol", "classic")).lower() != "classic":
            raise ValueError("only the classic group protocol is supported: leave group.protocol out of kafka.client")
        return self

    @model_validator(mode="after")
    def _room_for_records(self) -> Self:
        size = str(self.client.get("message.max.bytes", ""))
        if size.isdigit() and int(size) < MESSAGE_BYTES_MIN:
            what = "for the ledger and other topics of tickover's own; batches are limited by batch.size"
            raise ValueError(f"message.max.bytes of kafka.client must be {MESSAGE_BYTES_MIN} or more, {what}")
        return self


class LogSettings(Section):
    """The log, which goes to stderr. Payloads and header values are never logged."""

    level: Annotated[Literal["debug", "info", "warning", "error"], AnyCase] = Field(
        default="info", json_schema_extra=WHILE_RUNNING, description="debug, info, warning or error"
    )
    format: Annotated[Literal["json", "text"], AnyCase] = Field(
        default="json", description="json: one object per line; text: for people"
    )


class Origins(dict[str, str]):
    """Where each setting that was given came from, in words, by its written name. No part of what is set: settings are
    equal whatever their origins.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origins)

    __hash__ = None


class Settings(Section):
    """All settings of one process, frozen. Built by `load_settings`, or in tests: `Settings(group="g")`."""

    _origins: Origins = PrivateAttr(default_factory=Origins)

    group: str = Field(
        default="tickover",
        pattern=r"^[A-Za-z0-9._-]{1,200}$",
        description="Consumer group: its processes share the sources",
    )
    instance_id: str = Field(
        default="",
        max_length=200,
        description="group.instance.id, one per process (with `processes` -1, -2 ...); empty: dynamic membership",
    )
    processes: int = Field(
        default=1, ge=1, le=PROCESSES_MAX,
        description="Processes that share port and group, 1 to 64; limits of memory and of rates are of each. 1: no "
        "supervisor",
    )  # fmt: skip
    sources: TopicGlobs = Field(default=(), description="Topics or globs, comma list; empty: those the policies match")
    guarantee: Literal["at_least_once", "exactly_once"] = Field(
        default="exactly_once",
        description="exactly_once (once for read_committed readers) or at_least_once (sooner, a crash may repeat)",
    )
    horizon_ms: Milliseconds = Field(
        default=30_000,
        ge=1_000,
        le=600_000,
        alias="horizon",
        description="Longest span of the wheel, 1s to 10m",
    )
    start: Literal["auto", "earliest", "latest"] = Field(
        default="auto",
        description=(
            "Where a source new to the group begins: earliest or latest; partitions added later: earliest. auto: "
            "earliest, but a new group doesn't start where another group of tickover has one of its sources"
        ),
    )
    tick_ms: int = Field(default=1, ge=1, le=10, description="Resolution of the wheel, milliseconds, 1 to 10")
    settle_interval_ms: int = Field(
        default=50, ge=20, le=100, description="Time between ledger blocks, milliseconds, 20 to 100"
    )
    start_timeout_ms: Milliseconds = Field(
        default=900_000,
        ge=10_000,
        le=86_400_000,
        alias="start_timeout",
        description="So long a start waits for brokers that are away, then the process ends with status 1; 10s to 1d",
    )
    shutdown_timeout_ms: Milliseconds = Field(
        default=10_000,
        ge=1_000,
        le=300_000,
        alias="shutdown_timeout",
        description="Time for a clean stop, 1s to 5m",
    )
    data_dir: Path = Field(default_factory=data_dir, description="Where embedded services keep their data")
    wheel: WheelSettings = Field(default=WheelSettings())
    intake: IntakeSettings = Field(default=IntakeSettings())
    kafka: KafkaSettings = Field(default=KafkaSettings())
    redis: RedisSettings = Field(default=RedisSettings())
    ledger: LedgerSettings = Field(default=LedgerSettings())
    policies: PoliciesSettings = Field(default=PoliciesSettings())
    quarantine: QuarantineSettings = Field(default=QuarantineSettings())
    api: ApiSettings = Field(default=ApiSettings())
    audit: AuditSettings = Field(default=AuditSettings())
    dead_letters: DeadLettersSettings = Field(default=DeadLettersSettings())
    redrive: RedriveSettings = Field(default=RedriveSettings())
    changes: ChangesSettings = Field(default=ChangesSettings())
    schedules: SchedulesSettings = Field(default=SchedulesSettings())
    pauses: PausesSettings = Field(default=PausesSettings())
    otel: OtelSettings = Field(default=OtelSettings())
    log: LogSettings = Field(default=LogSettings())

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each setting that was given came from, in words, by its written name; the others are defaults."""
        return dict(self._origins)

    def with_origins(self, origins: Mapping[str, str]) -> "Settings":
        """A copy that says it came from there."""
        told = self.model_copy()
        told._origins = Origins(origins)
        return told

    @property
    def ledger_topic(self) -> str:
        """The ledger's name with the default filled in."""
        return self.ledger.topic or f"tickover.{self.group}.ledger"

    @property
    def audit_topic(self) -> str:
        """The audit topic's name with the default filled in."""
        return self.audit.topic or f"tickover.{self.group}.audit"

    @property
    def redrive_topic(self) -> str:
        """The name of the redrives' topic with the default filled in."""
        return self.redrive.topic or f"tickover.{self.group}.redrives"

    @property
    def redriven_topic(self) -> str:
        """The name of the topic of redriven letters with the default filled in."""
        return self.redrive.redriven_topic or f"tickover.{self.group}.redriven"

    @property
    def changes_topic(self) -> str:
        """The name of the changes' topic with the default filled in."""
        return self.changes.topic or f"tickover.{self.group}.changes"

    @property
    def schedule_topic(self) -> str:
        """The name of the schedules' topic with the default filled in."""
        return self.schedules.topic or f"tickover.{self.group}.schedules"

    @property
    def pause_topic(self) -> str:
        """The name of the topic of pauses with the default filled in."""
        return self.pauses.topic or f"tickover.{self.group}.pauses"

    @property
    def _own(self) -> tuple[str, ...]:
        return (
            self.ledger_topic, self.policies.topic, self.quarantine.topic, self.audit_topic, self.redrive_topic,
            self.redriven_topic, self.changes_topic, self.schedule_topic, self.pause_topic,
        )  # fmt: skip

    @property
    def own_topics(self) -> frozenset[str]:
        """The topics that are tickover's own."""
        return frozenset(self._own)

    @property
    def reserved_topics(self) -> ReservedTopics:
        """The topics that are never sources and never targets."""
        return ReservedTopics(self.own_topics, self.quarantine.topic)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        self.changes.refuse_without_names(self.api.authenticates)
        if len(self.own_topics) < len(self._own):
            raise ValueError(
                "ledger, policies, quarantine, audit, redrive, redriven, changes and schedule topic "
                "must be eight different topics"
            )
        return self


def load_settings(
    file: Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags (dotted names, None: not given) over `environ` over the file; raises `ConfigError`.

    Without `file` the one named by TICKOVER_CONFIG in `environ` is read, if any.
    """
    environ = environ or {}
    named = environ.get("TICKOVER_CONFIG", "")
    gathered = gather(Settings, file or (Path(named) if named else None), flags or {}, environ)
    problems = tuple(gathered.problems)  # unknown names first
    try:
        settings = Settings.model_validate(nest(gathered.leaves))
    except ValidationError as error:
        problems += explain(Settings, error, gathered.leaves, problems)
        raise ConfigError(problems, bool(gathered.unread)) from None
    if problems:
        raise ConfigError(problems, bool(gathered.unread))
    return settings.with_origins({".".join(path): sourced.source for path, sourced in gathered.leaves.items()})
