"""A broker's replicas: appending, fetching, deleting, and who is woken by what.

    append          high watermark moved:  produce, fetch, delete     queued; the request's end drains it
                    not moved:             fetch (followers wait for the log end)
    follower fetch  a watermark moved:     fetch, produce, delete     at once
    ISR answered    high watermark moved:  the same
    leader lost     or replica stopped:    produce, fetch, and so on: their checks find the error

It does no I/O: logs are `LogStorage`s, proposals to the controller go to `alter_partition`, times come from `clock`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from purgatory.delayed import delayed_delete_records
from purgatory.delayed.delayed_delete_records import (
    DelayedDeleteRecords,
    DeleteRecordsResult,
    DeleteRecordsSnapshot,
    must_delay_delete_records,
)
from purgatory.delayed.delayed_fetch import DelayedFetch, FetchParams, FetchPartition, FetchPartitionStatus
from purgatory.delayed.delayed_produce import DelayedProduce, ProduceResult, ProduceSnapshot, must_delay_produce
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.operation.action_queue import DelayedActionQueue
from purgatory.operation.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.partition.isr import (
    AlterOutcome,
    AlterPartition,
    AlterPartitionReply,
    ClusterMetadata,
    PartitionAssignment,
)
from purgatory.partition.partition import Moved, Partition
from purgatory.replica_manager.admission import HostedFacts, refuse_acks, refuse_partition
from purgatory.replica_manager.appending import append_to_local_logs
from purgatory.replica_manager.fetch_reading import ReadResults, must_answer_fetch, read_from_log
from purgatory.replica_manager.partition_reader import PartitionReader, ReadingSettings
from purgatory.timer.timer import DrivenTimer
from purgatory.versions import LATEST, KafkaVersion


class BrokerMetadata(ClusterMetadata, Protocol):
    """Facts that a broker knows about the cluster."""

    def knows(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition exists, wherever it is."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Clock in ms, a new timer for each purgatory, the cluster, where proposals go, how consumers and followers read.

    `alter_partition` only sends; the answer comes back through `ReplicaManager.alter_partition_answered`, later.
    """

    clock: Callable[[], float]
    make_timer: Callable[[], DrivenTimer]
    metadata: BrokerMetadata
    alter_partition: Callable[[TopicPartition, AlterPartition], None]
    reading: ReadingSettings
    version: KafkaVersion = LATEST


class Expirations:
    """Counts for whoever watches a broker: partitions of produce and delete requests, and fetches by who asked."""

    def __init__(self) -> None:
        self.produce = 0
        self.produce_by_partition: Counter[TopicPartition] = Counter()
        self.consumer_fetch = 0
        self.follower_fetch = 0
        self.delete_records = 0

    def produce_expired(self, key: TopicPartition) -> None:
        """A partition was not replicated in time."""
        self.produce += 1
        self.produce_by_partition[key] += 1

    def fetch_expired(self, *, is_from_follower: bool) -> None:
        """There were not enough bytes in time."""
        if is_from_follower:
            self.follower_fetch += 1
        else:
            self.consumer_fetch += 1

    def delete_records_expired(self, key: TopicPartition) -> None:
        """A replica of a partition has not followed in time."""
        self.delete_records += 1

    def remove_partition(self, key: TopicPartition) -> None:
        """The partition has gone: its own count goes, the sum stays. Harmless if it has none."""
        self.produce_by_partition.pop(key, None)


class ReplicaManager:
    """The partitions that broker `broker_id` hosts, and the operations that wait for them. One thread only.

    `respond` functions are called within the call that completes their request, which may be another's: they answer
    and return, and start nothing here themselves.
    """

    def __init__(self, broker_id: int, around: Surroundings) -> None:
        self.broker_id = broker_id
        self.partitions: dict[TopicPartition, Partition] = {}
        self.offline: set[TopicPartition] = set()
        self.action_queue = DelayedActionQueue()
        self.expirations = Expirations()
        self._around = around
        version = self._version = around.version
        timer = around.make_timer
        self.produce: DelayedOperationPurgatory[DelayedProduce] = DelayedOperationPurgatory(
            "Produce", timer(), version=version
        )
        self.fetch: DelayedOperationPurgatory[DelayedFetch] = DelayedOperationPurgatory(
            "Fetch", timer(), version=version
        )
        self.delete_records: DelayedOperationPurgatory[DelayedDeleteRecords] = DelayedOperationPurgatory(
            "DeleteRecords", timer(), delayed_delete_records.PURGE_INTERVAL, version=version
        )
        self._reader = PartitionReader(self.partition, around.clock, around.reading, self._woken)

    @property
    def purgatories(self) -> Sequence[DelayedOperationPurgatory[Any]]:
        """Purgatories that a driver has to bring forward."""
        return (self.produce, self.fetch, self.delete_records)

    # Requests

    def append_records(
        self,
        timeout_ms: int,
        required_acks: int,
        entries: Mapping[TopicPartition, Any],
        respond: Callable[[Mapping[TopicPartition, ProduceResult]], None],
    ) -> None:
        """Append, and answer at once or, with acks=-1, when all in-sync replicas have it. `respond` is called once.

        Call `try_complete_actions` when the request is handled.
        """
        refused = refuse_acks(required_acks)
        if refused is not Errors.NONE:
            respond({key: ProduceResult(refused) for key in entries})
            return
        results, moved = append_to_local_logs(self.partition, entries, required_acks, self._around.clock())
        self.action_queue.add(partial(self._appended, moved))
        if must_delay_produce(required_acks, results):
            operation = DelayedProduce(
                timeout_ms,
                results,
                self._look_for_produce,
                respond,
                expired=self.expirations.produce_expired,
                version=self._version,
            )
            self.produce.try_complete_else_watch(operation, list(entries))
        else:
            respond(results)

    def fetch_messages(
        self,
        params: FetchParams,
        partitions: Sequence[tuple[TopicPartition, FetchPartition]],
        respond: Callable[[ReadResults], None],
    ) -> None:
        """Read, and answer at once or when there is enough. `respond` is called once."""
        results = read_from_log(params, partitions, partial(self._reader.read, params))
        if must_answer_fetch(params, results):
            respond(results)
            return
        statuses = [
            (key, FetchPartitionStatus(partition, result.data.start))
            for (key, partition), (_, result) in zip(partitions, results, strict=True)
        ]

        def read_again() -> None:
            respond(read_from_log(params, partitions, partial(self._reader.read_again, params)))

        look = partial(self._reader.look, params)
        expired = partial(self.expirations.fetch_expired, is_from_follower=params.is_from_follower)
        operation = DelayedFetch(params, statuses, look, read_again, expired=expired, version=self._version)
        self.fetch.try_complete_else_watch(operation, [key for key, _ in partitions])

    def delete_records_before(
        self,
        timeout_ms: int,
        offsets: Mapping[TopicPartition, int],
        respond: Callable[[Mapping[TopicPartition, DeleteRecordsResult]], None],
    ) -> None:
        """Delete below these offsets, and answer when no living replica has the records. `respond` is called once."""
        results = {}
        for key, offset in offsets.items():
            try:
                requested, low_watermark = self.partition(key).delete_records_on_leader(offset)
                results[key] = DeleteRecordsResult(Errors.NONE, low_watermark, requested)
            except ApiError as error:
                results[key] = DeleteRecordsResult(error.error)
        if must_delay_delete_records(results):
            operation = DelayedDeleteRecords(
                timeout_ms,
                results,
                self._look_for_delete_records,
                respond,
                expired=self.expirations.delete_records_expired,
                version=self._version,
            )
            self.delete_records.try_complete_else_watch(operation, list(offsets))
        else:
            respond(results)

    def try_complete_actions(self) -> None:
        """To be called at the end of each request."""
        self.action_queue.try_complete_actions()

    # Roles

    def partition(self, key: TopicPartition) -> Partition:
        """The replica hosted here. ApiError: offline, elsewhere, unknown."""
        partition = self.partitions.get(key)
        is_hosted = partition is not None or key in self.offline
        is_known = is_hosted or self._around.metadata.knows(key)
        error = refuse_partition(HostedFacts(is_known, is_hosted, is_offline=key in self.offline))
        if error is not Errors.NONE or partition is None:
            raise ApiError(error)
        return partition

    def host(self, partition: Partition) -> None:
        """Have this replica from now on."""
        self.partitions[partition.topic_partition] = partition

    def become(self, key: TopicPartition, assignment: PartitionAssignment) -> None:
        """Lead or follow. What waits for a leader is answered when this broker is none any more."""
        partition = self.partition(key)
        was_leader = partition.is_leader
        if assignment.leader_id == self.broker_id:
            moved = partition.make_leader(assignment, self._around.clock())
            if moved is not None and moved.high_watermark:
                self._woken(key, moved)
        elif partition.make_follower(assignment) or was_leader:
            self._complete_delayed_operations(key)

    def stop_replica(self, key: TopicPartition) -> None:
        """Have it no longer: reassigned, or its topic deleted."""
        self.partitions.pop(key, None)
        self.offline.discard(key)
        self.expirations.remove_partition(key)
        self._complete_delayed_operations(key)

    def mark_offline(self, key: TopicPartition) -> None:
        """Mark a partition whose disk has failed."""
        self.offline.add(key)
        self._complete_delayed_operations(key)

    def _complete_delayed_operations(self, key: TopicPartition) -> None:
        """Check all that waits for a partition that has gone, or has another leader."""
        self.produce.check_and_complete(key)
        self.fetch.check_and_complete(key)
        self.delete_records.check_and_complete(key)

    # Replication

    def append_as_follower(self, key: TopicPartition, records: Any, high_watermark: int, log_start: int) -> None:
        """Take in what the leader sent. Consumers that wait at this follower see its high watermark move."""
        if self.partition(key).append_records_to_follower(records, high_watermark, log_start).high_watermark:
            self.fetch.check_and_complete(key)

    def truncate_to(self, key: TopicPartition, offset: int) -> None:
        """Forget what the leader does not have."""
        if self.partition(key).log.truncate_to(offset):
            self.fetch.check_and_complete(key)

    def maybe_shrink_isr(self) -> None:
        """To be called every half of the lag time."""
        for key, partition in self.partitions.items():
            proposal = None if key in self.offline else partition.maybe_shrink_isr(self._around.clock())
            if proposal is not None:
                self._around.alter_partition(key, proposal)

    def alter_partition_answered(
        self, key: TopicPartition, proposal: AlterPartition, reply: AlterPartitionReply
    ) -> AlterOutcome:
        """The controller's answer. A proposal to be repeated is sent again."""
        outcome, moved = self.partition(key).alter_partition_answered(proposal, reply, self._around.clock())
        if moved.high_watermark:
            self._woken(key, moved)
        if outcome is AlterOutcome.RETRY:
            self._around.alter_partition(key, proposal)
        return outcome

    def _appended(self, moved: Mapping[TopicPartition, Moved]) -> None:
        for key, change in moved.items():
            if change.high_watermark:
                self.produce.check_and_complete(key)
                self.fetch.check_and_complete(key)
                self.delete_records.check_and_complete(key)
            else:
                self.fetch.check_and_complete(key)

    def _woken(self, key: TopicPartition, moved: Moved) -> None:
        if moved.high_watermark or moved.low_watermark:
            self.fetch.check_and_complete(key)
            self.produce.check_and_complete(key)
            self.delete_records.check_and_complete(key)
        if moved.proposal is not None:
            self._around.alter_partition(key, moved.proposal)

    # What waiting operations see

    def _look_for_produce(self, key: TopicPartition) -> ProduceSnapshot:
        try:
            partition = self.partition(key)
        except ApiError as error:
            return ProduceSnapshot(error.error)
        return ProduceSnapshot(
            Errors.NONE,
            partition.is_leader,
            partition.log.high_watermark.offset,
            len(partition.state.maximal_isr),
            partition.effective_min_isr,
        )

    def _look_for_delete_records(self, key: TopicPartition) -> DeleteRecordsSnapshot:
        try:
            partition = self.partition(key)
            partition.check_leader()
        except ApiError as error:
            return DeleteRecordsSnapshot(error.error)
        return DeleteRecordsSnapshot(Errors.NONE, partition.low_watermark())
