"""A broker's settings: Kafka's names in our spelling, Kafka's defaults except where the comment says otherwise."""

from dataclasses import dataclass, field
from typing import Final

from broker.cluster.topic_config import check_config
from broker.log.config import DAY_MS

RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Times in ms, sizes in bytes. `topic_defaults` are settings of topics that are not given by the topic itself."""

    host: str = "127.0.0.1"
    auto_create_topics_enable: bool = False  # Kafka: true. A typing error should not make a topic
    num_partitions: int = 1
    default_replication_factor: int = 1
    fetch_max_bytes: int = 57_671_680
    socket_request_max_bytes: int = 104_857_600
    max_connections: int = 20_000  # Kafka: no limit
    max_fetch_sessions: int = 1_000
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_selector_class: str = ""  # or RACK_AWARE: consumers are sent to a replica in their rack
    log_retention_check_interval_ms: int = 300_000
    log_flush_interval_ms: int = 60_000  # what came since is checked at the next start after a crash
    group_initial_rebalance_delay_ms: int = 0  # Kafka: 3000. Examples and tests should not wait
    group_min_session_timeout_ms: int = 1_000  # Kafka: 6000. Tests should not wait
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * DAY_MS
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 1  # Kafka: 50. Each has a log of its own, in files
    offsets_topic_replication_factor: int = 3  # of as many brokers as there are, at most
    transaction_state_log_num_partitions: int = 1  # Kafka: 50
    transaction_state_log_replication_factor: int = 3
    transaction_max_timeout_ms: int = 900_000
    transaction_abort_timed_out_interval_ms: int = 1_000  # Kafka: 10,000. Tests should not wait
    transactional_id_expiration_ms: int = 7 * DAY_MS
    transaction_remove_expired_interval_ms: int = 3_600_000
    topic_defaults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_config(self.topic_defaults)
        if self.replica_selector_class not in ("", RACK_AWARE):
            raise ValueError(f"replica.selector.class is {RACK_AWARE} or empty, not {self.replica_selector_class}")
