"""Offsets of groups: committed, fetched, deleted, by members, by simple consumers, within transactions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from broker.groups.coordinator_log import Appended
from broker.groups.group import CONSUMER, Group
from broker.groups.rebalance import GroupRebalance
from broker.groups.store import GroupStore
from broker.groups.types import CommittedOffset, FetchedOffset, MemberClaim, OffsetCommitRequest
from broker.records.records import Producer
from purgatory.delayed.delayed_group import GroupState
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition

AnswerErrors = Callable[[Mapping[TopicPartition, Errors]], None]
# Whether a producer's transaction has this partition: called once, at once or later, with NONE or why not.
Verify = Callable[[OffsetCommitRequest, TopicPartition, Callable[[Errors], None]], None]


class OffsetCoordinator:
    """The offsets of all groups of a broker."""

    def __init__(self, store: GroupStore, rebalance: GroupRebalance, verify: Verify | None = None) -> None:
        self._store = store
        self._rebalance = rebalance
        self._verify = verify

    # Commit

    def commit(self, request: OffsetCommitRequest, answer: AnswerErrors) -> None:
        """Keep offsets. Answered when they are in the log."""
        try:
            group = self._group_for_commit(request.claim)
            self._check_commit(group, request.claim)
        except ApiError as error:
            answer(dict.fromkeys(request.offsets, error.error))
            return
        member = group.members.get(request.claim.member_id)
        if member is not None:
            self._rebalance.schedule_heartbeat(group, member)
        errors, accepted = self._accept(request.offsets)
        if not accepted:
            answer(errors)
            return
        group.offsets.prepare(accepted)
        self._store.store_offsets(group, accepted, partial(self._committed, group, accepted, errors, answer))

    def commit_transactional(self, request: OffsetCommitRequest, answer: AnswerErrors) -> None:
        """Keep offsets if the producer's transaction commits. Until it ends they are pending."""
        try:
            group = self._group_for_commit(request.claim)
            self._check_transactional(group, request.claim)
        except ApiError as error:
            answer(dict.fromkeys(request.offsets, error.error))
            return

        def verified(error: Errors) -> None:
            if error is not Errors.NONE:
                answer(dict.fromkeys(request.offsets, error))
                return
            errors, accepted = self._accept(request.offsets)
            if not accepted:
                answer(errors)
                return
            group.offsets.prepare_transactional(request.producer_id, accepted)
            then = partial(self._committed_transactional, group, request.producer_id, accepted)
            producer = Producer(request.producer_id, request.producer_epoch)
            self._store.store_offsets(group, accepted, partial(then, errors, answer), producer)

        if self._verify is None or request.producer_id in group.offsets.producers:
            verified(Errors.NONE)
        else:
            self._verify(request, self._store.ownership.partition_for(group.group_id), verified)

    def _group_for_commit(self, claim: MemberClaim) -> Group:
        self._store.check(claim.group_id, may_be_empty=True)
        group = self._store.groups.get(claim.group_id)
        if group is None:
            if claim.generation_id >= 0:
                raise ApiError(Errors.ILLEGAL_GENERATION, "there is no such group")
            group = self._store.get_or_create(claim.group_id)
        return group

    def _check_commit(self, group: Group, claim: MemberClaim) -> None:
        """Without a generation only for a group without members: simple consumers and administrators."""
        is_member = claim.generation_id >= 0 or bool(claim.member_id) or claim.group_instance_id is not None
        if claim.generation_id < 0 and group.state is GroupState.EMPTY:
            return
        if not is_member:
            raise ApiError(Errors.UNKNOWN_MEMBER_ID, "the group has members, and this is none")
        _check_generation(group, claim)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(Errors.REBALANCE_IN_PROGRESS, "the members wait for their parts")

    def _check_transactional(self, group: Group, claim: MemberClaim) -> None:
        """Older producers don't say who they are; who does must be a member of this generation."""
        if claim.generation_id < 0 and group.state is GroupState.EMPTY:
            return
        if claim.generation_id >= 0 or claim.member_id or claim.group_instance_id is not None:
            _check_generation(group, claim)

    def _accept(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> tuple[dict[TopicPartition, Errors], dict[TopicPartition, CommittedOffset]]:
        now_ms = int(self._store.clock())
        limit = self._store.settings.offset_metadata_max_bytes
        errors: dict[TopicPartition, Errors] = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        for key, offset in offsets.items():
            if len(offset.metadata) > limit:
                errors[key] = Errors.OFFSET_METADATA_TOO_LARGE
            else:
                errors[key] = Errors.NONE
                accepted[key] = replace(offset, commit_timestamp=now_ms)
        return errors, accepted

    # tidy: what was asked, who is answered, and how the log ended it
    def _committed(
        self,
        group: Group,
        accepted: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, Errors],
        answer: AnswerErrors,
        result: Appended,
    ) -> None:
        if result.error is Errors.NONE:
            group.offsets.appended(_at(accepted, result.base_offset))
        else:
            group.offsets.failed(accepted)
        answer({**errors, **dict.fromkeys(accepted, result.error)})

    # tidy: as above, and whose transaction
    def _committed_transactional(
        self,
        group: Group,
        producer_id: int,
        accepted: Mapping[TopicPartition, CommittedOffset],
        errors: Mapping[TopicPartition, Errors],
        answer: AnswerErrors,
        result: Appended,
    ) -> None:
        if result.error is Errors.NONE:
            group.offsets.appended_transactional(producer_id, _at(accepted, result.base_offset))
        else:
            group.offsets.failed_transactional(producer_id, accepted)
        answer({**errors, **dict.fromkeys(accepted, result.error)})

    # Fetch

    def fetch(
        self, group_id: str, keys: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        """Committed offsets of these, or (None) of all. With `require_stable` one that a transaction may still
        change is UNSTABLE_OFFSET_COMMIT. ApiError: not answered here."""
        self._store.check(group_id, may_be_empty=True)
        group = self._store.groups.get(group_id)
        if group is None:
            return {key: FetchedOffset() for key in keys or ()}
        found = {}
        for key in group.offsets.committed if keys is None else keys:
            offset = group.offsets.committed.get(key)
            if require_stable and group.offsets.has_pending_transactional(key):
                found[key] = FetchedOffset(Errors.UNSTABLE_OFFSET_COMMIT)
            elif offset is None:
                found[key] = FetchedOffset()
            else:
                found[key] = FetchedOffset(Errors.NONE, offset.offset, offset.leader_epoch, offset.metadata)
        return found

    # Delete

    def delete(self, group_id: str, keys: Iterable[TopicPartition], answer: AnswerErrors) -> None:
        """Forget offsets that no member needs. ApiError for all of them: no such group, or one that isn't of
        consumers and has members."""
        self._store.check(group_id)
        group = self._store.groups.get(group_id)
        if group is None:
            raise ApiError(Errors.GROUP_ID_NOT_FOUND, "there is no such group")
        kept: set[str] = set()
        wanted = list(keys)
        if group.state is not GroupState.EMPTY:
            if group.protocol_type != CONSUMER:
                raise ApiError(Errors.NON_EMPTY_GROUP, "the group has members")
            subscribed = group.subscribed_topics()
            kept = {key.topic for key in wanted} if subscribed is None else subscribed
        errors = {key: Errors.GROUP_SUBSCRIBED_TO_TOPIC if key.topic in kept else Errors.NONE for key in wanted}
        removed = group.offsets.remove(key for key in wanted if errors[key] is Errors.NONE)

        def removed_from_log(error: Errors) -> None:
            answer({**errors, **dict.fromkeys(removed, error)})

        self._store.remove(group, removed, removed_from_log)


def _check_generation(group: Group, claim: MemberClaim) -> None:
    group.check_member(claim.member_id, claim.group_instance_id)
    if claim.generation_id != group.generation_id:
        raise ApiError(Errors.ILLEGAL_GENERATION, f"the generation is {group.generation_id}")


def _at(offsets: Mapping[TopicPartition, CommittedOffset], base_offset: int) -> dict[TopicPartition, CommittedOffset]:
    return {key: replace(offset, appended_offset=base_offset) for key, offset in offsets.items()}
