"""Making tickover's own topics at start, those that are missing."""

from policies.kafka_clients import AdminClient
from policies.retention import ledger_retention_ms, policies_of
from policies.table import PolicyTable
from sidecar.kafka.topics import (
    CHANGES_PARTITIONS,
    JOBS_CONFIG,
    QUARANTINE_CONFIG,
    REDRIVEN_CONFIG,
    SCHEDULE_CONFIG,
    MissingTopicError,
    audit_config,
    ensure_topic,
    ledger_config,
    topic_ids,
)
from sidecar.ledger.topic import LedgerTopic
from sidecar.settings.settings import Settings


def ensure_own_topics(admin: AdminClient, settings: Settings, table: PolicyTable) -> LedgerTopic:
    """Returns the ledger. Raises MissingTopicError with the way out."""
    ledger, replicas = settings.ledger, settings.ledger.replication_factor
    config = ledger_config(ledger.retention_ms or ledger_retention_ms(policies_of(table)))
    partitions = ensure_topic(admin, settings.ledger_topic, ledger.partitions, replicas, config)
    ensure_topic(admin, settings.quarantine.topic, 1, replicas, QUARANTINE_CONFIG)
    ensure_topic(admin, settings.audit_topic, 1, replicas, audit_config(settings.audit.retention_ms))
    ensure_topic(admin, settings.redrive_topic, 1, replicas, JOBS_CONFIG)
    ensure_topic(admin, settings.redriven_topic, 1, replicas, REDRIVEN_CONFIG)
    ensure_topic(admin, settings.schedule_topic, 1, replicas, SCHEDULE_CONFIG)
    found = ensure_topic(admin, settings.changes_topic, CHANGES_PARTITIONS, replicas, JOBS_CONFIG)
    if found < CHANGES_PARTITIONS:
        raise MissingTopicError(
            f"topic {settings.changes_topic} has {found} partition, and receipts need a second; add it by:\n"
            f"kafka-topics.sh --alter --topic {settings.changes_topic} --partitions {CHANGES_PARTITIONS}"
        )
    ledger_id = topic_ids(admin, [settings.ledger_topic]).get(settings.ledger_topic, "")
    return LedgerTopic(settings.ledger_topic, partitions, settings.group, ledger_id, ledger.when_lost)
