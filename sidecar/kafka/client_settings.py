"""Settings of every client of Kafka: the engine's first, then those that read or write beside it.

Each function gives the settings of one kind of client, as a new mapping. What users may override stands before their
`client` settings, what a guarantee rests on behind them. The policies, which know nothing of the sidecar, have their
own (`policies/topic/store.py`, `policies/topic/reader.py`). Figures behind `linger.ms`: see
docs/decisions/0039-the-clients-thread-must-not-wait-in-a-busy-loop.md.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from sidecar.model.ports import MESSAGE_BYTES_MAX, SMALL_BATCH_BYTES

TRANSACTION_TIMEOUT_MS: Final = 10_000  # a process that died holds up the readers of its partitions no longer than this
LONE_BATCHES: Final = {"batch.num.messages": "1", "linger.ms": "0"}
SMALL_BATCHES: Final = {"batch.size": str(SMALL_BATCH_BYTES), "linger.ms": "1"}

# --- the engine's -----------------------------------------------------------------------------------------------------

_CONSUMER_DEFAULTS: Final = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "2000",
    "queued.min.messages": "50000",
    # More is no faster, and what a backlog once filled, the process keeps: of small records three times as much.
    "queued.max.messages.kbytes": "16384",
    "fetch.queue.backoff.ms": "10",
    # A record ends a fetch that waits; what is resumed or sought meanwhile waits for its end.
    "fetch.wait.max.ms": "100",
    "reconnect.backoff.max.ms": "1000",
    "topic.metadata.refresh.interval.ms": "5000",  # new partitions of a source are seen in time, not after 5 minutes
}
_CONSUMER_FIXED: Final = {
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",  # where a lane starts is recovery's decision, never the client's
    "isolation.level": "read_committed",
    "allow.auto.create.topics": "false",
}
_PRODUCER_DEFAULTS: Final = {
    "linger.ms": "5",
    "batch.size": "1000000",
    "message.max.bytes": str(MESSAGE_BYTES_MAX),  # the client's own default is less
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "1048576",
    "compression.type": "lz4",
    "topic.metadata.propagation.max.ms": "5000",
    "reconnect.backoff.max.ms": "1000",
}
_PRODUCER_FIXED: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    "message.timeout.ms": "0",  # brokers that are away are waited for; the wheel's limits do the rest
    "partitioner": "murmur2_random",  # as Java's
    "allow.auto.create.topics": "false",
}
# A record that has lingered behind a batch under way makes the client's thread wait in a busy loop: see docs/decisions,
# 0039. So it's the engine that has the client send (`Transaction.push`).
_TRANSACTIONAL_DEFAULTS: Final = {"linger.ms": "1000"}
# Of every transactional producer, whoever uses it.
_TRANSACTIONAL_FIXED: Final = {
    "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
    "message.timeout.ms": str(TRANSACTION_TIMEOUT_MS),  # may not be longer
    # The broker answers "concurrent transactions" while it completes the last one: 100 ms each by the default.
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "100",
}


def consumer_settings(client: Mapping[str, str], group: str, instance_id: str) -> dict[str, Any]:
    """Settings of the consumer of the source topics."""
    own = {"group.id": group, **({"group.instance.id": instance_id} if instance_id else {})}
    return {**_CONSUMER_DEFAULTS, **client, **_CONSUMER_FIXED, **own}


def producer_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the producer of emissions and ledger blocks."""
    return {**_PRODUCER_DEFAULTS, **client, **_PRODUCER_FIXED}


def lone_producer_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the producer that sends every record in a batch of its own: `engine/emission/emitter.py`."""
    return {**producer_settings(client), **LONE_BATCHES}


def small_producer_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the producer for targets that take no larger batches."""
    return {**producer_settings(client), **SMALL_BATCHES}


def batch_bytes_max(client: Mapping[str, str]) -> int:
    """The largest batch of several records that the usual producer makes, in bytes."""
    return int(producer_settings(client)["batch.size"])


def transactional_settings(
    client: Mapping[str, str], transactional_id: str, batches: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Settings of one transactional producer of the engine; `batches`: what its batches are limited to."""
    settings = producer_settings({**_TRANSACTIONAL_DEFAULTS, **client})
    return {**settings, **_TRANSACTIONAL_FIXED, "transactional.id": transactional_id, **batches}


# --- readers beside the engine: they join no group and commit nothing, and the client wants a group's name all the same

READER: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": "false",
    "fetch.wait.max.ms": "20",
    "queued.min.messages": "10000",
    "queued.max.messages.kbytes": "16384",
}
_UNCOMMITTED: Final = {"isolation.level": "read_uncommitted"}  # what is there is there, whatever its transaction does
# Followed for ever, and nearly always silent: few requests, and still the end is seen soon after a transaction's.
_IDLE: Final = {"fetch.wait.max.ms": "100"}
# What is wanted is known by offset, so a client that went elsewhere by itself would do harm.
_SOURCE_LOG: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": "false",
    "queued.max.messages.kbytes": "32768",
    "fetch.queue.backoff.ms": "10",
    "fetch.wait.max.ms": "10",
}
# A recovery reads all that there is as fast as the client's own defaults, or its users, let it.
_LEDGER_LOG: Final = {
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
}
_FIRST_RECORDS: Final = {
    **_UNCOMMITTED,
    "enable.partition.eof": "true",
    "client.rack": "",  # from the leader: a follower may not know yet what all have
    "queued.min.messages": "1",
    "fetch.message.max.bytes": "16384",  # of each partition one batch is enough
}
_SOON: Final = {"fetch.wait.max.ms": "10"}  # so long takes the answer that a partition has no more records
_BACKLOG: Final = {"enable.partition.eof": "true", "auto.offset.reset": "earliest"}


def reader_settings(client: Mapping[str, Any], group_id: str) -> dict[str, Any]:
    """Settings of a consumer that reads what is committed, from places that it is told."""
    return {**client, **READER, "group.id": group_id}


def uncommitted_reader_settings(client: Mapping[str, Any], group_id: str) -> dict[str, Any]:
    """Settings of a reader that sees what open transactions have written, too."""
    return {**reader_settings(client, group_id), **_UNCOMMITTED}


def follower_settings(client: Mapping[str, Any], group_id: str) -> dict[str, Any]:
    """Settings of a reader that follows small topics for as long as the process lives."""
    return {**reader_settings(client, group_id), **_IDLE}


def source_log_settings(client: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Settings of the reader of sources for a rebuild."""
    return {**client, **_SOURCE_LOG, "group.id": f"{group}.rebuild"}


def ledger_log_settings(client: Mapping[str, Any], topic: str) -> dict[str, Any]:
    """Settings of the reader of the ledger for a recovery."""
    return {**client, **_LEDGER_LOG, "group.id": f"{topic}.recovery"}


def uncommitted_ledger_settings(client: Mapping[str, Any], topic: str) -> dict[str, Any]:
    """Settings of a reader that sees what open transactions have written to the ledger, too."""
    return {**ledger_log_settings(client, topic), **_UNCOMMITTED}


def commit_reader_settings(client: Mapping[str, str], group: str) -> dict[str, Any]:
    """Settings of a consumer that asks for the group's commits, under its name."""
    return consumer_settings({**_SOON, **client}, group, "")


def uncommitted_commit_reader_settings(client: Mapping[str, str], group: str) -> dict[str, Any]:
    """Settings of a consumer that asks for the group's commits without waiting for transactions."""
    return {**commit_reader_settings(client, group), **_UNCOMMITTED}


def first_records_settings(client: Mapping[str, str], group: str) -> dict[str, Any]:
    """Settings of a reader that wants one record each of many partitions."""
    return {**commit_reader_settings(client, group), **_FIRST_RECORDS}


def backlog_settings(client: Mapping[str, str], group: str) -> dict[str, Any]:
    """Settings of a reader that looks whether a partition has any more records."""
    return {**commit_reader_settings(client, group), **_BACKLOG}


# --- writers beside the engine, and who asks about topics -------------------------------------------------------------

_SENDER_DEFAULTS: Final = {
    "linger.ms": "5",
    "batch.size": "1000000",
    "message.max.bytes": str(MESSAGE_BYTES_MAX),
    "compression.type": "lz4",
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "131072",
    "topic.metadata.propagation.max.ms": "3000",
}
_SENDER_FIXED: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    "partitioner": "murmur2_random",
    "allow.auto.create.topics": "false",
    **_TRANSACTIONAL_FIXED,
}
# One request at a time: behind a refused record others in flight would be out of sequence, and the client waits then.
_SENDER_ALONE: Final = {**LONE_BATCHES, "max.in.flight": "1"}
_JOB_WRITER: Final = {"enable.idempotence": "true", "message.timeout.ms": "10000"}
_CONTROL_SENDER: Final = {
    "enable.idempotence": "true",
    "allow.auto.create.topics": "false",
    "linger.ms": "5",
    "compression.type": "lz4",
    "message.timeout.ms": "6000",
    "queue.buffering.max.messages": "10000",
    "queue.buffering.max.kbytes": "65536",
}
REST_SENDER: Final = {
    "partitioner": "murmur2_random",
    "enable.idempotence": "true",
    "linger.ms": "1",
    "message.timeout.ms": "10000",
    "queue.buffering.max.messages": "10000",
    "queue.buffering.max.kbytes": "65536",
}


def sender_settings(client: Mapping[str, Any], transactional_id: str, alone: bool = False) -> dict[str, Any]:
    """Settings of a transactional producer of jobs; `alone`: every record in a batch of its own."""
    lonely = _SENDER_ALONE if alone else {}
    return {**_SENDER_DEFAULTS, **client, **_SENDER_FIXED, **lonely, "transactional.id": transactional_id}


def copier_settings(client: Mapping[str, str], transactional_id: str) -> dict[str, Any]:
    """Settings of the transactional producer that copies topics: as the engine's, and it sends by itself."""
    return {**transactional_settings(client, transactional_id), "linger.ms": "5"}


def job_writer_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the producer that writes plans and aborts, one at a time."""
    return {**client, **_JOB_WRITER}


def control_sender_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the producer of a bulk change's control records: it gives up well within a lease."""
    return {**client, **_CONTROL_SENDER}


def rest_sender_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the producer of what clients of REST send."""
    return {**client, **REST_SENDER}


def admin_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a client that asks about topics, and by its questions creates none."""
    return {**client, "allow.auto.create.topics": "false"}


client_log = logging.getLogger("librdkafka")
ANSWER_TIMEOUT_S: Final = 10.0
