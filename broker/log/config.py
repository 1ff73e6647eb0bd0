"""Settings of a topic, as its logs need them."""

from dataclasses import dataclass, field

from broker.records.batch_validation import RecordRules

DAY_MS = 86_400_000
LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Kafka's topic settings, with its defaults. Times are in ms; -1 means without a limit."""

    records: RecordRules = field(default_factory=RecordRules)
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0  # already drawn: how much earlier this log rolls than others
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    is_deleted: bool = True  # cleanup.policy has delete
    is_compacted: bool = False  # cleanup.policy has compact
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX  # then it is compacted, however clean it is
    producer_id_expiration_ms: int = DAY_MS
    flush_messages: int = LONG_MAX  # with 1, what is acknowledged survives a loss of power
