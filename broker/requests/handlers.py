"""Handlers by the requests that they answer. A handler is given the broker and the request, and gives a mapping of
kio's field names, or None if there is nothing to say (acks=0).

    async def heartbeat(broker: Broker, request: Request) -> Response:
        return {"error_code": ...}

To wait for a delayed operation: `await broker.answer_of(...)`. Fields that a request's version doesn't have are not in
its type: `getattr(request.body, "name", default)`. `CloseConnection` ends the connection instead of answering.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from broker.cluster.broker import Broker
from broker.protocol.api_keys import ApiKey
from broker.protocol.request import Request
from broker.requests.cluster import (
    alter_partition_reassignments,
    describe_cluster,
    describe_quorum,
    elect_leaders,
    list_partition_reassignments,
)
from broker.requests.configs import alter_configs, describe_configs, incremental_alter_configs
from broker.requests.coordinator import find_coordinator
from broker.requests.fetch import fetch
from broker.requests.group_offsets import offset_commit, offset_delete, offset_fetch
from broker.requests.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_all_groups,
    sync_group,
)
from broker.requests.logs import delete_records, describe_log_dirs, describe_producers, offset_for_leader_epoch
from broker.requests.metadata import metadata
from broker.requests.offsets import list_offsets
from broker.requests.produce import produce
from broker.requests.topics import create_partitions, create_topics, delete_topics
from broker.requests.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_all_transactions,
    txn_offset_commit,
    write_txn_markers,
)

Response = Mapping[str, Any] | None
Handler = Callable[[Broker, Request], Awaitable[Response]]

HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.PRODUCE: produce,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.LIST_GROUPS: list_all_groups,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.END_TXN: end_txn,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.LIST_TRANSACTIONS: list_all_transactions,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
}
