"""All groups of this broker, and their records in `__consumer_offsets`: written, read again, forgotten.

A partition of that topic that this broker comes to lead is read to its end; until then its groups' requests are
answered COORDINATOR_LOAD_IN_PROGRESS. Of a transaction's batches the offsets count when its end marker is there.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.groups.coordinator_log import GROUPS_TOPIC, Appended, CoordinatorLog, Ownership
from broker.groups.group import Group
from broker.groups.records import (
    GroupKey,
    OffsetKey,
    Pair,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_offset,
    encode_removed_group,
)
from broker.groups.types import NAME_MAX, CommittedOffset, GroupSettings
from broker.protocol.primitive_types import UnreadableRecord
from broker.records.control_records import read_end_marker
from broker.records.record_batch import TRANSACTIONAL, BatchHeader
from broker.records.records import Producer, Record, build_batch, read_records
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

_log = logging.getLogger(__name__)

GROUP_APPEND_ERRORS: Final = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.REQUEST_TIMED_OUT: Errors.REBALANCE_IN_PROGRESS,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}
OFFSET_APPEND_ERRORS: Final = {
    **GROUP_APPEND_ERRORS,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.MESSAGE_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE,
    Errors.RECORD_LIST_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE,
}


class GroupStore:
    """Groups by id. `clock` gives wall-clock time in ms, `post` runs a function in a later turn."""

    def __init__(
        self,
        settings: GroupSettings,
        log: CoordinatorLog,
        clock: Callable[[], float],
        post: Callable[[Callable[[], None]], object],
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.groups: dict[str, Group] = {}
        self.ownership = Ownership(GROUPS_TOPIC, settings.offsets_partitions)
        self._log = log
        self._post = post

    def check(self, group_id: str, *, may_be_empty: bool = False) -> None:
        """ApiError unless this broker answers for the group. Old clients commit offsets for a group without a name."""
        if not (group_id or may_be_empty) or len(group_id) > NAME_MAX:
            raise ApiError(Errors.INVALID_GROUP_ID, "a group has a name that fits into the log")
        self.ownership.check(group_id)

    def get_or_create(self, group_id: str) -> Group:
        """A group, a new one if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.clock())
        return group

    # Writing

    def store_group(self, group: Group, assignments: Mapping[str, bytes], then: Callable[[Errors], None]) -> None:
        """Write the group down with these assignments; `then` is called later, with an error a client understands."""

        def appended(result: Appended) -> None:
            then(GROUP_APPEND_ERRORS.get(result.error, result.error))

        self._append(group.group_id, [encode_group(group, assignments)], appended)

    def store_offsets(
        self,
        group: Group,
        offsets: Mapping[TopicPartition, CommittedOffset],
        then: Callable[[Appended], None],
        producer: Producer | None = None,
    ) -> None:
        """Write offsets down, with `producer` as part of its transaction."""

        def appended(result: Appended) -> None:
            then(Appended(OFFSET_APPEND_ERRORS.get(result.error, result.error), result.base_offset))

        pairs = [encode_offset(group.group_id, key, offset) for key, offset in offsets.items()]
        self._append(group.group_id, pairs, appended, producer)

    def remove(
        self, group: Group, keys: Iterable[TopicPartition], then: Callable[[Errors], None] | None = None
    ) -> None:
        """Forget these offsets, and the group when it is Dead. What is written tells those who read the log later;
        an error of that concerns nobody, since it is forgotten again then."""
        pairs: list[Pair] = [encode_offset(group.group_id, key, None) for key in keys]
        if group.state is GroupState.DEAD:
            if group.generation_id > 0:
                pairs.append(encode_removed_group(group.group_id))
            self.groups.pop(group.group_id, None)

        def appended(result: Appended) -> None:
            if result.error is not Errors.NONE:
                _log.warning("could not write down what was removed from a group: %s", result.error.name)
            if then is not None:
                then(OFFSET_APPEND_ERRORS.get(result.error, result.error))

        if pairs:
            self._append(group.group_id, pairs, appended)
        elif then is not None:
            then(Errors.NONE)

    def expire_offsets(self) -> int:
        """Forget offsets that nobody has needed for too long, and groups that are left with nothing. To be called from
        time to time. The number of offsets forgotten."""
        now_ms = self.clock()
        count = 0
        for group in list(self.groups.values()):
            expired = self._expired_of(group, now_ms)
            group.offsets.remove(expired)
            if group.state is GroupState.EMPTY and group.offsets.is_empty:
                group.transition_to(GroupState.DEAD, now_ms)
            if expired or group.state is GroupState.DEAD:
                self.remove(group, expired)
            count += len(expired)
        return count

    def complete_transaction(self, producer_id: int, partitions: Iterable[int], *, is_commit: bool) -> None:
        """End markers of this producer are in these partitions."""
        ended = set(partitions)
        for group in self.groups.values():
            if self.ownership.partition_for(group.group_id).partition in ended:
                group.offsets.complete_transaction(producer_id, is_commit=is_commit)

    # Leading a partition

    def on_election(self, partition: int, leader_epoch: int, loaded: Callable[[Group], None]) -> None:
        """Take over a partition that this broker leads now: read it in a later turn. `loaded` gets its groups."""
        if self.ownership.owned.get(partition, -1) >= leader_epoch:
            return
        is_known = partition in self.ownership.owned and partition not in self.ownership.loading
        self.ownership.owned[partition] = leader_epoch
        if is_known:
            return  # it led before: what it knows is all there is
        self.ownership.loading.add(partition)
        self._post(lambda: self._load(partition, leader_epoch, loaded))

    def on_resignation(self, partition: int, unloaded: Callable[[Group], None]) -> None:
        """Another broker leads it: its groups are no more here. `unloaded` answers who waits."""
        self.ownership.owned.pop(partition, None)
        self.ownership.loading.discard(partition)
        for group in list(self.groups.values()):
            if self.ownership.partition_for(group.group_id).partition == partition:
                unloaded(group)
                group.transition_to(GroupState.DEAD, self.clock())
                del self.groups[group.group_id]

    def _load(self, partition: int, leader_epoch: int, loaded: Callable[[Group], None]) -> None:
        if self.ownership.owned.get(partition) != leader_epoch:
            return  # it is led by another again
        loading = _Loading()
        try:
            for header, data in self._log.batches(TopicPartition(GROUPS_TOPIC, partition)):
                loading.take(header, data)
        except ApiError:
            _log.exception("could not read %s-%d to its end", GROUPS_TOPIC, partition)
        for group in loading.to_groups(self.clock()):
            self.groups[group.group_id] = group
            loaded(group)
        self.ownership.loading.discard(partition)

    def _expired_of(self, group: Group, now_ms: float) -> list[TopicPartition]:
        retention_ms = self.settings.offsets_retention_ms
        if group.protocol_type is not None and group.state is GroupState.EMPTY:
            since_ms = group.state_timestamp if group.state_timestamp >= 0 else None
            return group.offsets.expired(now_ms, retention_ms, since_ms=since_ms, kept=set())
        if group.state is GroupState.STABLE:
            subscribed = group.subscribed_topics()
            if subscribed is not None:
                return group.offsets.expired(now_ms, retention_ms, since_ms=None, kept=subscribed)
        if group.protocol_type is None:
            return group.offsets.expired(now_ms, retention_ms, since_ms=None, kept=set())
        return []

    def _append(
        self,
        group_id: str,
        pairs: Iterable[Pair],
        then: Callable[[Appended], None],
        producer: Producer | None = None,
    ) -> None:
        now_ms = int(self.clock())
        records = [Record(index, now_ms, key, value) for index, (key, value) in enumerate(pairs)]
        batch = build_batch(records, producer=producer, attributes=TRANSACTIONAL if producer else 0)
        self._log.append(self.ownership.partition_for(group_id), batch, then)


class _Loading:
    """The groups that a partition's batches come to, taken one after the other."""

    def __init__(self) -> None:
        self._groups: dict[str, StoredGroup] = {}
        self._offsets: dict[OffsetKey, CommittedOffset] = {}
        self._pending: dict[int, dict[OffsetKey, CommittedOffset | None]] = {}

    def take(self, header: BatchHeader, data: bytes) -> None:
        """The next batch. What can't be read is passed over."""
        if header.is_control:
            marker = read_end_marker(header, data)
            pending = self._pending.pop(header.producer_id, {}) if marker is not None else {}
            if marker is not None and not marker.is_aborted:
                for key, offset in pending.items():
                    self._put(key, offset)
            return
        for record in read_records(header, data):
            try:
                self._take_record(header, record)
            except UnreadableRecord as error:
                _log.warning("passed over a record of %s: %s", GROUPS_TOPIC, error)

    def to_groups(self, now_ms: float) -> list[Group]:
        """All groups there are at the end."""
        groups = {group_id: stored.to_group(group_id) for group_id, stored in self._groups.items()}

        def of(group_id: str) -> Group:
            return groups.setdefault(group_id, Group(group_id, now_ms))

        for (group_id, key), offset in self._offsets.items():
            of(group_id).offsets.apply(key, offset)
        for producer_id, pending in self._pending.items():
            for (group_id, key), pending_offset in pending.items():
                if pending_offset is not None:
                    of(group_id).offsets.appended_transactional(producer_id, {key: pending_offset})
        return list(groups.values())

    def _take_record(self, header: BatchHeader, record: Record) -> None:
        key = decode_key(record.key)
        if isinstance(key, GroupKey):
            if record.value is None:
                self._groups.pop(key.group_id, None)
            else:
                self._groups[key.group_id] = decode_group(record.value)
            return
        offset = None if record.value is None else decode_offset(record.value, header.base_offset)
        if header.is_transactional:
            self._pending.setdefault(header.producer_id, {})[key] = offset
        else:
            self._put(key, offset)

    def _put(self, key: OffsetKey, offset: CommittedOffset | None) -> None:
        known = self._offsets.get(key)
        if offset is None:
            self._offsets.pop(key, None)
        elif known is None or known.appended_offset <= offset.appended_offset:
            self._offsets[key] = offset
