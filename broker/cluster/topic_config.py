"""Topic settings by Kafka's names: their defaults, what values they take, and what they mean to a log and a replica."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.log.config import DAY_MS, LONG_MAX, LogConfig
from broker.records.batch_validation import RecordRules
from broker.records.record_batch import TimestampType
from broker.records.records import TIMESTAMP_MAX
from purgatory.errors import ApiError, Errors

INT_MAX: Final = (1 << 31) - 1
SEGMENT_BYTES_MIN: Final = 1 << 20
LEADER_THROTTLED: Final = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED: Final = "follower.replication.throttled.replicas"
REPLICA: Final = re.compile(r"([0-9]+):([0-9]+)")  # partition:broker


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """A setting: its default as text, its type by Kafka's number, whether a value will do."""

    default: str
    type_number: int
    is_valid: Callable[[str], bool]
    is_list: bool = False


BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = 1, 2, 3, 4, 5, 6, 7


def _integer(default: int, low: int, high: int = LONG_MAX) -> ConfigDefinition:
    def is_valid(text: str) -> bool:
        return text.lstrip("-").isdecimal() and low <= int(text) <= high

    return ConfigDefinition(str(default), LONG if high == LONG_MAX else INT, is_valid)


def _one_of(default: str, *values: str) -> ConfigDefinition:
    return ConfigDefinition(default, STRING, lambda text: text in values)


def _boolean(*, default: bool) -> ConfigDefinition:
    return ConfigDefinition(str(default).lower(), BOOLEAN, lambda text: text.lower() in ("true", "false"))


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _is_replica_list(text: str) -> bool:
    return text.strip() == "*" or all(REPLICA.fullmatch(word) for word in policies_of(text))


def _is_cleanup_policy(text: str) -> bool:
    return set(policies_of(text)) <= {"compact", "delete"}


DEFINITIONS: Final[Mapping[str, ConfigDefinition]] = {
    "cleanup.policy": ConfigDefinition("delete", LIST, _is_cleanup_policy, is_list=True),
    "compression.type": _one_of("producer", "producer"),
    "delete.retention.ms": _integer(DAY_MS, 0),
    "file.delete.delay.ms": _integer(60_000, 0),
    "flush.messages": _integer(LONG_MAX, 1),
    "flush.ms": _integer(LONG_MAX, 0),
    FOLLOWER_THROTTLED: ConfigDefinition("", LIST, _is_replica_list, is_list=True),
    "index.interval.bytes": _integer(4096, 0, INT_MAX),
    LEADER_THROTTLED: ConfigDefinition("", LIST, _is_replica_list, is_list=True),
    "max.compaction.lag.ms": _integer(LONG_MAX, 1),
    "max.message.bytes": _integer(1_048_588, 0, INT_MAX),
    "message.timestamp.after.max.ms": _integer(3_600_000, 0),
    "message.timestamp.before.max.ms": _integer(LONG_MAX, 0),
    "message.timestamp.type": _one_of("CreateTime", "CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": ConfigDefinition("0.5", DOUBLE, _is_ratio),
    "min.compaction.lag.ms": _integer(0, 0),
    "min.insync.replicas": _integer(1, 1, INT_MAX),
    "preallocate": _boolean(default=False),
    "retention.bytes": _integer(-1, -1),
    "retention.ms": _integer(7 * DAY_MS, -1),
    "segment.bytes": _integer(1 << 30, SEGMENT_BYTES_MIN, INT_MAX),
    "segment.index.bytes": _integer(10 << 20, 4, INT_MAX),
    "segment.jitter.ms": _integer(0, 0),
    "segment.ms": _integer(7 * DAY_MS, 1),
    "unclean.leader.election.enable": _boolean(default=False),
}

BROKER_NAMES: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""What a broker calls its default for a topic's setting; the others are called the same."""


def policies_of(text: str) -> list[str]:
    """The words of `cleanup.policy`, or of another list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def check_config(config: Mapping[str, str | None]) -> dict[str, str]:
    """The settings without those that are null. INVALID_CONFIG: a name that isn't known, a value that won't do."""
    checked = {}
    for name, value in config.items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise ApiError(Errors.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if value is None:
            raise ApiError(Errors.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        if not definition.is_valid(value):
            raise ApiError(Errors.INVALID_CONFIG, f"Invalid value {value} for configuration {name}")
        checked[name] = value
    return checked


def value_of(config: Mapping[str, str], name: str) -> str:
    """Value that is set, else the default."""
    return config.get(name, DEFINITIONS[name].default)


def is_true(config: Mapping[str, str], name: str) -> bool:
    """A boolean setting."""
    return value_of(config, name).lower() == "true"


def throttled_partitions(config: Mapping[str, str], name: str, broker_id: int) -> frozenset[int] | None:
    """The partitions of which the replica at this broker is throttled by the setting of this name; None: all."""
    words = policies_of(value_of(config, name))
    if words == ["*"]:
        return None
    found = (REPLICA.fullmatch(word) for word in words)
    return frozenset(int(one[1]) for one in found if one is not None and int(one[2]) == broker_id)


def log_config(config: Mapping[str, str], draw: Callable[[int], int]) -> LogConfig:
    """Settings of a topic as one of its logs needs them. `draw` gives a number below n: logs that began together need
    not roll together."""

    def number(name: str) -> Any:
        return int(value_of(config, name))

    policies = policies_of(value_of(config, "cleanup.policy"))
    is_compacted = "compact" in policies
    # What waits for compaction must leave the active segment in time.
    segment_ms = min(number("segment.ms"), number("max.compaction.lag.ms") if is_compacted else LONG_MAX)
    jitter_ms = min(number("segment.jitter.ms"), segment_ms)
    is_append_time = value_of(config, "message.timestamp.type") == "LogAppendTime"
    rules = RecordRules(
        max_message_bytes=number("max.message.bytes"),
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=min(TIMESTAMP_MAX, number("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=min(TIMESTAMP_MAX, number("message.timestamp.after.max.ms")),
        needs_key=is_compacted,
    )
    return LogConfig(
        rules,
        segment_bytes=number("segment.bytes"),
        segment_ms=segment_ms,
        segment_jitter_ms=draw(jitter_ms) if jitter_ms else 0,
        segment_index_bytes=number("segment.index.bytes"),
        index_interval_bytes=number("index.interval.bytes"),
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
        is_deleted="delete" in policies,
        is_compacted=is_compacted,
        delete_retention_ms=number("delete.retention.ms"),
        min_cleanable_dirty_ratio=float(value_of(config, "min.cleanable.dirty.ratio")),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        flush_messages=number("flush.messages"),
    )
