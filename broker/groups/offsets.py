"""The offsets of one group: committed, being written, and those of transactions that have not ended.

A commit counts when its record is replicated. Between two of one partition the one that stands later in the log wins,
whichever is known first: a transaction's offset counts from its end marker on, but stands where it was written.
"""

from collections.abc import Iterable, Mapping

from broker.groups.types import CommittedOffset
from purgatory.log_offsets import TopicPartition


class GroupOffsets:
    """Offsets by partition."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self._writing: dict[TopicPartition, int] = {}  # number of commits on their way to the log
        # By producer: what is on its way to the log or in it (None: not yet), until its transaction has ended
        self._transactional: dict[int, dict[TopicPartition, CommittedOffset | None]] = {}

    def prepare(self, keys: Iterable[TopicPartition]) -> None:
        """A commit of these goes to the log."""
        for key in keys:
            self._writing[key] = self._writing.get(key, 0) + 1

    def appended(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Note commits that are in the log."""
        self.failed(offsets)
        for key, offset in offsets.items():
            self.apply(key, offset)

    def failed(self, keys: Iterable[TopicPartition]) -> None:
        """Note that commits of these partitions have failed."""
        for key in keys:
            left = self._writing.get(key, 0) - 1
            if left > 0:
                self._writing[key] = left
            else:
                self._writing.pop(key, None)

    def apply(self, key: TopicPartition, offset: CommittedOffset) -> None:
        """A commit, unless one that stands later in the log is known."""
        known = self.committed.get(key)
        if known is None or known.appended_offset <= offset.appended_offset:
            self.committed[key] = offset

    # Transactions

    def prepare_transactional(self, producer_id: int, keys: Iterable[TopicPartition]) -> None:
        """Offsets of a transaction go to the log. They are pending from now on."""
        pending = self._transactional.setdefault(producer_id, {})
        for key in keys:
            pending.setdefault(key, None)

    def appended_transactional(self, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Note offsets of a transaction that are in the log."""
        self._transactional.setdefault(producer_id, {}).update(offsets)

    def failed_transactional(self, producer_id: int, keys: Iterable[TopicPartition]) -> None:
        """Note that offsets of a transaction have failed: they are not in the log."""
        pending = self._transactional.get(producer_id, {})
        for key in keys:
            if key in pending and pending[key] is None:
                del pending[key]
        if not pending:
            self._transactional.pop(producer_id, None)

    def complete_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """The end marker is in the log."""
        for key, offset in self._transactional.pop(producer_id, {}).items():
            if is_commit and offset is not None:
                self.apply(key, offset)

    def has_pending_transactional(self, key: TopicPartition) -> bool:
        """Whether a transaction that has not ended commits an offset of this partition."""
        return any(key in pending for pending in self._transactional.values())

    @property
    def producers(self) -> set[int]:
        """Producers with a transaction that has not ended."""
        return set(self._transactional)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing, nor anything to come."""
        return not (self.committed or self._writing or self._transactional)

    # Forgetting

    def remove(self, keys: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forget these, also in transactions. Those that were there."""
        removed = []
        for key in keys:
            was_committed = self.committed.pop(key, None) is not None
            was_pending = [pending for pending in self._transactional.values() if pending.pop(key, None) is not None]
            if was_committed or was_pending:
                removed.append(key)
        self._transactional = {producer: pending for producer, pending in self._transactional.items() if pending}
        return removed

    def expired(
        self, now_ms: float, retention_ms: int, *, since_ms: int | None, kept: set[str]
    ) -> list[TopicPartition]:
        """Partitions that nobody has committed for too long, counted from `since_ms` if given. Topics in `kept` stay,
        and so does what is being written."""
        found = []
        for key, offset in self.committed.items():
            if key.topic in kept or key in self._writing or self.has_pending_transactional(key):
                continue
            if offset.expire_timestamp is not None:
                is_over = now_ms >= offset.expire_timestamp
            else:
                last_ms = offset.commit_timestamp if since_ms is None else since_ms
                is_over = now_ms - last_ms >= retention_ms
            if is_over:
                found.append(key)
        return found
