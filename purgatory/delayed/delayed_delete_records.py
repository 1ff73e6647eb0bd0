"""A DeleteRecords request that waits until no living replica has the deleted records any more."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from purgatory.errors import Errors
from purgatory.log_offsets import UNKNOWN, TopicPartition
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.versions import LATEST, KafkaVersion

PURGE_INTERVAL = 1  # such requests are rare, and each may hold many keys


@dataclass(frozen=True, slots=True)
class DeleteRecordsResult:
    """The answer for one partition: low watermark (-1 with an error), and the offset below which to delete."""

    error: Errors
    low_watermark: int = UNKNOWN
    requested_offset: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class DeleteRecordsSnapshot:
    """A partition as a waiting request sees it: unknown (3), not the leader any more (6), offline (56)."""

    error: Errors = Errors.NONE
    low_watermark: int = UNKNOWN


def must_delay_delete_records(results: Mapping[TopicPartition, DeleteRecordsResult]) -> bool:
    """Whether a request waits: some partition was cut, and a replica of it has not followed yet."""
    return any(one.error is Errors.NONE and one.low_watermark < one.requested_offset for one in results.values())


def decide_delete_records(requested_offset: int, snapshot: DeleteRecordsSnapshot) -> Errors | None:
    """The answer for one partition; None while a living replica has records below the offset."""
    if snapshot.error is not Errors.NONE:
        return snapshot.error
    return Errors.NONE if snapshot.low_watermark >= requested_offset else None


class DelayedDeleteRecords(DelayedOperation):
    """A waiting DeleteRecords request. Partitions that time out are answered with 7 and the low watermark of when it
    was asked; `expired` gets each of them.
    """

    def __init__(
        self,
        timeout_ms: int,
        results: Mapping[TopicPartition, DeleteRecordsResult],
        look: Callable[[TopicPartition], DeleteRecordsSnapshot],
        respond: Callable[[Mapping[TopicPartition, DeleteRecordsResult]], None],
        *,
        expired: Callable[[TopicPartition], None] | None = None,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(timeout_ms, version=version)
        self._look = look
        self._respond = respond
        self._expired = expired
        self._pending = [key for key, result in results.items() if result.error is Errors.NONE]
        self.results = dict(results)
        for key in self._pending:
            self.results[key] = replace(results[key], error=Errors.REQUEST_TIMED_OUT)

    def try_complete(self) -> bool:
        """Decide what can be decided; complete when nothing is pending."""
        for key in tuple(self._pending):
            snapshot = self._look(key)
            error = decide_delete_records(self.results[key].requested_offset, snapshot)
            if error is not None:
                self.results[key] = replace(self.results[key], error=error, low_watermark=snapshot.low_watermark)
                self._pending.remove(key)
        return not self._pending and self.force_complete()

    def on_complete(self) -> None:
        """Answer."""
        self._respond(self.results)

    def on_expiration(self) -> None:
        """Some replica has not followed in time."""
        if self._expired is not None:
            for key in self._pending:
                self._expired(key)
