"""Kafka's ConsumerCoordinator: what a rebalance means for a consumer's partitions.

    eager         all partitions are given back before joining; what is assigned is new
    cooperative   all are kept while joining; then only what went elsewhere is given back, and the member joins once
                  more, so that its new owner may get it

Cooperative it is if all assignors of `partition_assignment_strategy` are. Steps that tell the user's listener happen
within `poll`; requests are a task beside it, so that fetching goes on while others are waited for.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from broker.clients.assignors.assignor import NO_GENERATION, PartitionRacks, Subscription
from broker.clients.assignors.assignors import ASSIGNORS
from broker.clients.assignors.sticky_assignor import COOPERATIVE_NAME, NAME, cooperative_user_data, sticky_user_data
from broker.clients.consumer.consumer_metadata import ConsumerMetadata
from broker.clients.consumer.consumer_records import ConsumerSettings
from broker.clients.consumer.group.committed_offsets import CommittedOffsets
from broker.clients.consumer.group.coordinator_link import CoordinatorLink
from broker.clients.consumer.group.group_member import Assigned, GroupMember
from broker.clients.consumer.group.member_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.clients.consumer.subscription_state import SubscriptionState
from purgatory.errors import ApiError
from purgatory.log_offsets import TopicPartition


class ConsumerCoordinator:
    """One consumer's side of its group. `changed` is called when its next `poll` has something to do."""

    def __init__(
        self,
        settings: ConsumerSettings,
        link: CoordinatorLink,
        metadata: ConsumerMetadata,
        subscriptions: SubscriptionState,
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._link = link
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._changed = changed
        self._is_cooperative = set(settings.partition_assignment_strategy) == {COOPERATIVE_NAME}
        self._joining: asyncio.Task[Assigned | None] | None = None
        self._joined_topics: frozenset[str] | None = None
        self._group_topics: frozenset[str] = frozenset()
        self._assigned_by: PartitionRacks | None = None  # the leader's view; others have none
        self._last: dict[str, tuple[list[TopicPartition], int]] = {}  # of each assignor: what it gave, and when
        self._commit_due_s = 0.0
        self.member = GroupMember(settings, link, changed)
        self.offsets = CommittedOffsets(link, self.member)

    async def poll(self) -> bool:
        """Take part: give back, join, take. False: try again after a while. ApiError: the group refuses."""
        self.member.polled()
        await self._maybe_auto_commit()
        if self._subscriptions.topics is None:
            return True
        if self._joining is None:
            if not self._must_join():
                return True
            await self._prepare()
            self._joined_topics = self._subscriptions.topics
            self._joining = asyncio.create_task(self.member.join(self._protocols(), self._lead))
            self._joining.add_done_callback(lambda _: self._changed())
        if not self._joining.done():
            return True
        joined, self._joining = self._joining, None
        assigned = joined.result()
        if assigned is None or assigned.generation != self.member.generation:
            return False
        await self._complete(assigned)
        return True

    async def leave(self, *, says_so: bool) -> None:
        """Give everything back, and be a member no more."""
        if self._settings.enable_auto_commit:
            await self._try_to_commit()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
            self._joining = None
            await self._link.disconnect()  # a JoinGroup that isn't answered would hold up what follows
        await self._give_back(list(self._subscriptions.partitions))
        self._subscriptions.assign(())
        await self.member.leave(says_so=says_so)
        self._assigned_by = None

    def _must_join(self) -> bool:
        if self._assigned_by is not None:
            now = self._metadata.partition_racks(self._group_topics)
            if now != self._assigned_by:
                return True
        return self.member.must_join or self._joined_topics != self._subscriptions.topics

    async def _prepare(self) -> None:
        """Give back what can't be kept, once before each generation."""
        if not self.member.must_prepare:
            return
        self.member.must_prepare = False
        if self._settings.enable_auto_commit:
            await self._try_to_commit()
        had = list(self._subscriptions.partitions)
        topics = self._subscriptions.topics or frozenset()
        is_kept = self._is_cooperative and self._is_member
        await self._give_back([one for one in had if not (is_kept and one.topic in topics)])
        self._subscriptions.assign(one for one in had if is_kept and one.topic in topics)

    @property
    def _is_member(self) -> bool:
        generation = self.member.generation
        return generation.generation_id != NO_GENERATION and generation.member_id != ""

    async def _give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Tell the listener: revoked from a member, lost by one that is none."""
        listener = self._subscriptions.listener
        if partitions and listener is not None:
            await (listener.on_revoked if self._is_member else listener.on_lost)(partitions)

    def _protocols(self) -> dict[str, bytes]:
        """A subscription for each assignor."""
        return {
            name: encode_subscription(
                Subscription(
                    sorted(self._subscriptions.topics or ()),
                    self._user_data(name),
                    list(self._subscriptions.partitions),
                    self.member.generation.generation_id,
                    self._settings.client_rack or None,
                )
            )
            for name in self._settings.partition_assignment_strategy
        }

    def _user_data(self, name: str) -> bytes | None:
        partitions, generation = self._last.get(name, ([], NO_GENERATION))
        if name == COOPERATIVE_NAME:
            return cooperative_user_data(generation)
        return sticky_user_data(partitions, generation) if name == NAME and name in self._last else None

    async def _lead(self, protocol: str, members: Sequence[Any]) -> Mapping[str, bytes]:
        """As the leader: what everybody gets, by what is known of topics now."""
        subscriptions = {
            one.member_id: decode_subscription(one.metadata, one.group_instance_id or None) for one in members
        }
        self._group_topics = frozenset(topic for one in subscriptions.values() for topic in one.topics)
        await self._metadata.refresh(self._group_topics)
        self._assigned_by = self._metadata.partition_racks(self._group_topics)
        assignment = ASSIGNORS[protocol](self._assigned_by, subscriptions)
        return {member: encode_assignment(partitions) for member, partitions in assignment.items()}

    async def _complete(self, assigned: Assigned) -> None:
        """Take what was assigned; in the cooperative protocol, give back the rest and join again."""
        self.member.must_prepare = True
        if not assigned.is_leader:
            self._assigned_by = None
        partitions = decode_assignment(assigned.assignment)
        topics = self._subscriptions.topics or frozenset()
        if not topics.issuperset(one.topic for one in partitions):
            self.member.must_join = True  # the user has changed the subscription meanwhile
            return
        had = self._subscriptions.partitions
        added = [one for one in partitions if one not in had]
        gone = [one for one in had if one not in partitions]
        if gone:
            await self._give_back(gone)
            self.member.must_join = True
        protocol = assigned.generation.protocol_name
        self._last[protocol] = partitions, assigned.generation.generation_id
        self._subscriptions.assign(partitions)
        self._commit_in(self._settings.auto_commit_interval_ms)
        if self._subscriptions.listener is not None:
            await self._subscriptions.listener.on_assigned(added)

    async def _maybe_auto_commit(self) -> None:
        is_due = self._settings.enable_auto_commit and asyncio.get_running_loop().time() >= self._commit_due_s
        if is_due and self._joining is None:
            self._commit_in(self._settings.auto_commit_interval_ms)
            await self._try_to_commit()

    def _commit_in(self, milliseconds: int) -> None:
        self._commit_due_s = asyncio.get_running_loop().time() + milliseconds / 1000

    async def _try_to_commit(self) -> None:
        """As good as it goes: what isn't committed is read again, by whoever has it then."""
        consumed = self._subscriptions.consumed()
        if consumed:
            try:
                await self.offsets.commit(consumed, as_member=self._subscriptions.topics is not None)
            except (ApiError, OSError):
                self._commit_in(self._settings.retry_backoff_ms)
