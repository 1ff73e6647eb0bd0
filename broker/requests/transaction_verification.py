"""Whether what a producer sends belongs to its open transaction: asked when it begins in a partition.

Without this, a batch that arrives late, after the end marker, would open a transaction that nobody ends, and hold back
readers of committed records for ever.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from broker.cluster.broker import Broker
from broker.records.record_batch import Buffer, read_header
from broker.transactions.coordinator import ProducerClaim
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.replica_manager.admission import refuse_unverified_transaction

ADDS_SINCE: Final = 12  # versions of producers that leave adding partitions to the broker


async def verify_transaction(
    broker: Broker, version: int, transactional_id: str | None, entries: Mapping[TopicPartition, Buffer]
) -> dict[TopicPartition, Errors]:
    """Partitions of a produce request that are refused, and why. Each entry begins with a whole header."""
    refused = {}
    for key, records in entries.items():
        header = read_header(records)
        if not header.is_transactional or key not in broker.logs.logs:
            continue
        known = broker.log_of(key).state.producers.producers.get(header.producer_id)
        is_open = known is not None and known.transaction_first_offset is not None
        if known is not None and is_open and known.producer_epoch == header.producer_epoch:
            continue
        if not transactional_id:
            refused[key] = Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            continue
        claim = ProducerClaim(transactional_id, header.producer_id, header.producer_epoch)
        if version >= ADDS_SINCE:
            error: Errors = await broker.answer_of(partial(broker.coordinators.add_partition, claim, key))
        else:
            error = broker.coordinators.verify(claim, key)
        if error is not Errors.NONE:
            refused[key] = refuse_unverified_transaction(error, version)
    return refused
