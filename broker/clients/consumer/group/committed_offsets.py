"""OffsetCommit and OffsetFetch, one attempt each; RetriableError says to try again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.clients.consumer.consumer_records import OffsetAndMetadata, RetriableError
from broker.clients.consumer.group.coordinator_link import LOADING, MOVED, CoordinatorLink
from broker.clients.consumer.group.group_member import GroupMember, MemberState
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

NO_OFFSET: Final = -1
RETRIABLE: Final = frozenset(
    {
        *MOVED,
        LOADING,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.REQUEST_TIMED_OUT,
        Errors.UNSTABLE_OFFSET_COMMIT,
    }
)
MEMBERSHIP: Final = frozenset(
    {
        Errors.REBALANCE_IN_PROGRESS,
        Errors.ILLEGAL_GENERATION,
        Errors.UNKNOWN_MEMBER_ID,
        Errors.FENCED_INSTANCE_ID,
    }
)


class CommittedOffsets:
    """A group's offsets in `__consumer_offsets`."""

    def __init__(self, link: CoordinatorLink, member: GroupMember) -> None:
        self._link = link
        self._member = member

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, as_member: bool) -> None:
        """As a member of this generation, or of a group that has no members. ApiError as `Consumer.commit_sync`."""
        if as_member and self._member.state is not MemberState.STABLE:
            is_joining = self._member.state is not MemberState.UNJOINED
            error = Errors.REBALANCE_IN_PROGRESS if is_joining else Errors.UNKNOWN_MEMBER_ID
            raise ApiError(error, "not committed: poll, to take part in the group again")
        generation = self._member.generation
        claim = self._member.claim()
        claim["generation_id_or_member_epoch"] = claim.pop("generation_id")
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for partition, one in offsets.items():
            row = {
                "partition_index": partition.partition,
                "committed_offset": one.offset,
                "committed_leader_epoch": -1,
                "committed_metadata": one.metadata,
            }
            rows[partition.topic].append(row)
        topics = [{"name": topic, "partitions": of} for topic, of in rows.items()]
        told = await self._link.ask(ApiKey.OFFSET_COMMIT, topics=topics, **claim)
        for error in (Errors(row.error_code) for topic in told.topics for row in topic.partitions):
            if error in MEMBERSHIP:
                if self._member.generation == generation:
                    self._member.deal(error)
                raise ApiError(error, "not committed: the partitions may be another member's")
            self._check(error)

    async def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Of those that have one. While a transaction that commits offsets is open, they are RetriableError."""
        indexes: dict[str, list[int]] = defaultdict(list)
        for one in partitions:
            indexes[one.topic].append(one.partition)
        topics = [{"name": topic, "partition_indexes": of} for topic, of in indexes.items()]
        told = await self._link.ask(ApiKey.OFFSET_FETCH, topics=topics, require_stable=True)
        self._check(Errors(told.error_code))
        found = {}
        for topic in told.topics:
            for row in topic.partitions:
                self._check(Errors(row.error_code))
                if row.committed_offset != NO_OFFSET:
                    place = TopicPartition(topic.name, row.partition_index)
                    found[place] = OffsetAndMetadata(row.committed_offset, row.metadata or "")
        return found

    def _check(self, error: Errors) -> None:
        if error in MOVED:
            self._link.forget()
        if error in RETRIABLE:
            raise RetriableError(error.name)
        if error is not Errors.NONE:
            raise ApiError(error, f"{error.name} in group {self._link.group_id}")
