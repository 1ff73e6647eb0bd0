"""One replica of a partition: leader or follower, high watermark, in-sync replicas.

No I/O, no clock, no thread: whoever calls passes the time, sends the proposals that come back, and wakes the
operations that wait when it is told that the high or low watermark has moved.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.partition.isr import (
    AlterOutcome,
    AlterPartition,
    AlterPartitionReply,
    ClusterMetadata,
    PartitionAssignment,
    PartitionState,
    outcome_of,
)
from purgatory.partition.replica import NO_BROKER_EPOCH, FollowerFetch, Replica, at_leader_change
from purgatory.partition.replica_log import AppendInfo, ReplicaLog
from purgatory.versions import LATEST, KafkaVersion

REPLICA_LAG_TIME_MAX_MS = 30_000


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Topic and broker settings that decide about replication."""

    min_insync_replicas: int = 1
    replica_lag_time_max_ms: int = REPLICA_LAG_TIME_MAX_MS
    version: KafkaVersion = LATEST


@dataclass(frozen=True, slots=True)
class Moved:
    """Watermarks that a call has moved, for whoever wakes operations; `proposal` is to be sent to the controller."""

    high_watermark: bool = False
    low_watermark: bool = False
    proposal: AlterPartition | None = None


class Partition:
    """A replica on broker `broker_id`, one thread only. Until it is told its role it is a follower of nobody."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker_id: int,
        log: ReplicaLog,
        metadata: ClusterMetadata,
        settings: PartitionSettings | None = None,
        topic_id: str | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.broker_id = broker_id
        self.log = log
        self.settings = settings or PartitionSettings()
        self.topic_id = topic_id
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.leader_epoch_start_offset: int | None = None
        self.replicas: tuple[int, ...] = ()
        self.state = PartitionState(frozenset())
        self.remote: dict[int, Replica] = {}
        self._metadata = metadata

    # Roles

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return self.leader_id == self.broker_id

    def make_leader(self, assignment: PartitionAssignment, now_ms: float) -> Moved | None:
        """Lead, or go on leading with other replicas. None if the assignment is older than what is known."""
        if assignment.partition_epoch < self.partition_epoch:
            return None
        is_new_epoch = assignment.leader_epoch > self.leader_epoch or not self.is_leader
        self._take(assignment)
        followers = [broker_id for broker_id in assignment.replicas if broker_id != self.broker_id]
        if is_new_epoch:
            self.leader_epoch_start_offset = self.log.log_end_offset
            self.log.epochs.begin(assignment.leader_epoch, self.log.log_end_offset)
        # One assignment, so that nobody sees a replica missing that is in both the old and the new one.
        self.remote = {
            broker_id: at_leader_change(broker_id, broker_id in assignment.isr, now_ms)
            if is_new_epoch or broker_id not in self.remote
            else self.remote[broker_id]
            for broker_id in followers
        }
        return Moved(high_watermark=self._maybe_increment_leader_high_watermark(now_ms))

    def make_follower(self, assignment: PartitionAssignment) -> bool | None:
        """Follow. Whether the leader epoch is new, so that fetching starts afresh; None if the assignment is old."""
        if assignment.partition_epoch < self.partition_epoch:
            return None
        is_new_epoch = assignment.leader_epoch > self.leader_epoch
        self._take(assignment)
        self.remote = {}
        self.leader_epoch_start_offset = None
        return is_new_epoch

    # Writing

    @property
    def effective_min_isr(self) -> int:
        """From 3.7 on never more than there are replicas."""
        minimum = self.settings.min_insync_replicas
        return min(minimum, len(self.replicas)) if self.settings.version.has_strict_min_isr else minimum

    @property
    def is_under_min_isr(self) -> bool:
        """Whether a leader has too few in-sync replicas for acks=-1."""
        return self.is_leader and len(self.state.isr) < self.effective_min_isr

    def append_records_to_leader(self, records: Any, required_acks: int, now_ms: float) -> tuple[AppendInfo, Moved]:
        """Append what a producer sent. ApiError: not leader, too few replicas for acks=-1, or the storage's own."""
        self.check_leader()
        if required_acks == -1 and len(self.state.isr) < self.effective_min_isr:
            raise ApiError(
                Errors.NOT_ENOUGH_REPLICAS, f"{len(self.state.isr)} in sync, {self.effective_min_isr} needed"
            )
        info = self.log.append_as_leader(records, self.leader_epoch)
        return info, Moved(high_watermark=self._maybe_increment_leader_high_watermark(now_ms))

    def append_records_to_follower(self, records: Any, leader_high_watermark: int, leader_log_start: int) -> Moved:
        """Append what the leader sent, and follow its watermarks. What moved is of this replica."""
        if records:
            self.log.append_as_follower(records)
        high_watermark = self.log.update_high_watermark(leader_high_watermark)
        start = min(leader_log_start, self.log.high_watermark.offset)
        return Moved(high_watermark, self.log.maybe_increment_log_start_offset(start))

    # Replication, as leader

    def update_follower_fetch_state(self, fetch: FollowerFetch, leader_log_end_offset: int, now_ms: float) -> Moved:
        """A follower has fetched. `leader_log_end_offset` is the log end before that fetch was read.

        Not to be called when the read failed or diverged, nor for reads again from the purgatory.
        """
        replica = self.remote.get(fetch.broker_id)
        if replica is None:
            raise ApiError(Errors.NOT_LEADER_OR_FOLLOWER, f"{fetch.broker_id} is no replica")
        registered = self._metadata.broker_epoch(fetch.broker_id)
        if fetch.broker_epoch != NO_BROKER_EPOCH and registered is not None and fetch.broker_epoch < registered:
            raise ApiError(Errors.NOT_LEADER_OR_FOLLOWER, f"{fetch.broker_id} has registered again since")
        low_before = self.low_watermark()
        updated = self.remote[fetch.broker_id] = replica.fetched(fetch, leader_log_end_offset, now_ms)
        proposal = self._maybe_expand_isr(updated)
        moved = False
        if updated.log_end.offset != replica.log_end.offset:
            moved = self._maybe_increment_leader_high_watermark(now_ms)
        return Moved(moved, self.low_watermark() > low_before, proposal)

    def maybe_shrink_isr(self, now_ms: float) -> AlterPartition | None:
        """Propose an ISR without followers that have lagged for too long. To be called every half of the lag time."""
        if not self.is_leader or self.state.is_in_flight:
            return None
        end, lag_max_ms = self.log.log_end_offset, self.settings.replica_lag_time_max_ms
        lagging = {
            replica.broker_id
            for replica in self.remote.values()
            if replica.broker_id in self.state.isr and not replica.is_caught_up(end, now_ms, lag_max_ms)
        }
        return self._propose(self.state.isr - lagging) if lagging else None

    def alter_partition_answered(
        self, proposal: AlterPartition, reply: AlterPartitionReply, now_ms: float
    ) -> tuple[AlterOutcome, Moved]:
        """The controller has answered a proposal."""
        proposed = frozenset(broker_id for broker_id, _ in proposal.isr)
        is_current = self.is_leader and proposal.leader_epoch == self.leader_epoch
        if not is_current or proposal.partition_epoch != self.partition_epoch or self.state.proposed != proposed:
            return AlterOutcome.IGNORED, Moved()
        if reply.error is not Errors.NONE:
            outcome = outcome_of(reply.error)
            if outcome is AlterOutcome.ROLLED_BACK:
                self.state = PartitionState(self.state.isr)
            return outcome, Moved()
        if reply.leader_epoch != self.leader_epoch or reply.partition_epoch < self.partition_epoch:
            return AlterOutcome.IGNORED, Moved()
        self.state = PartitionState(reply.isr)
        self.partition_epoch = reply.partition_epoch
        return AlterOutcome.APPLIED, Moved(self._maybe_increment_leader_high_watermark(now_ms))

    def low_watermark(self) -> int:
        """The lowest log start of the leader and all replicas that are alive; -1 on a follower."""
        if not self.is_leader:
            return -1
        alive = [one.log_start_offset for one in self.remote.values() if self._metadata.is_alive(one.broker_id)]
        return min([self.log.log_start_offset, *alive])

    def delete_records_on_leader(self, offset: int) -> tuple[int, int]:
        """Delete what is below `offset` (-1: below the high watermark). The offset meant, and the low watermark."""
        self.check_leader()
        wanted = self.log.high_watermark.offset if offset == -1 else offset
        if wanted < 0:
            raise ApiError(Errors.OFFSET_OUT_OF_RANGE, f"{offset} is no offset")
        self.log.maybe_increment_log_start_offset(wanted)
        return wanted, self.low_watermark()

    def check_leader(self) -> None:
        """NOT_LEADER_OR_FOLLOWER unless this replica leads."""
        if not self.is_leader:
            raise ApiError(Errors.NOT_LEADER_OR_FOLLOWER, f"{self.leader_id} leads")

    def _take(self, assignment: PartitionAssignment) -> None:
        self.leader_id = assignment.leader_id
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.replicas = assignment.replicas
        self.state = PartitionState(assignment.isr)

    def _maybe_increment_leader_high_watermark(self, now_ms: float) -> bool:
        if self.settings.version.has_strict_min_isr and self.is_under_min_isr:
            return False
        new = self.log.log_end
        for replica in self.remote.values():
            if replica.log_end.offset < new.offset and self._counts_for_high_watermark(replica, now_ms):
                new = replica.log_end
        return self.log.maybe_increment_high_watermark(new)

    def _counts_for_high_watermark(self, replica: Replica, now_ms: float) -> bool:
        """In the ISR, or about to be: were it passed by now, it could not join."""
        if replica.broker_id in self.state.maximal_isr:
            return True
        lag_max_ms = self.settings.replica_lag_time_max_ms
        return replica.is_caught_up(self.log.log_end_offset, now_ms, lag_max_ms) and self._is_eligible(replica)

    def _maybe_expand_isr(self, replica: Replica) -> AlterPartition | None:
        """A follower joins when it has all that is committed, and all from before this leader's time."""
        start = self.leader_epoch_start_offset
        if (
            not self.state.is_in_flight
            and replica.broker_id not in self.state.isr
            and start is not None
            and replica.log_end.offset >= max(self.log.high_watermark.offset, start)
            and self._is_eligible(replica)
        ):
            return self._propose(self.state.isr | {replica.broker_id})
        return None

    def _is_eligible(self, replica: Replica) -> bool:
        registered = self._metadata.broker_epoch(replica.broker_id)
        is_same_life = replica.broker_epoch in (NO_BROKER_EPOCH, registered)
        return is_same_life and self._metadata.is_eligible(replica.broker_id)

    def _propose(self, isr: Iterable[int]) -> AlterPartition:
        self.state = PartitionState(self.state.isr, frozenset(isr))
        members = tuple((broker_id, self._epoch_of(broker_id)) for broker_id in sorted(isr))
        return AlterPartition(self.broker_id, self.leader_epoch, self.partition_epoch, members)

    def _epoch_of(self, broker_id: int) -> int:
        if broker_id in self.remote:
            return self.remote[broker_id].broker_epoch
        registered = self._metadata.broker_epoch(broker_id)
        return NO_BROKER_EPOCH if registered is None else registered
