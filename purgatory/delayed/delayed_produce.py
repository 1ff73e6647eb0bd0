"""A produce request with acks=-1 that waits until all in-sync replicas have its records.

Per partition the answer begins as REQUEST_TIMED_OUT and is changed when the partition is decided; so whatever is still
open when the time is over is answered as it should be: with 7, and the real base offset, since the records are in
the log and may become visible later. A partition that failed in the append keeps its error and is never looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from purgatory.errors import Errors, RecordErrors
from purgatory.locks import Monitor
from purgatory.log_offsets import UNKNOWN, TopicPartition
from purgatory.operation.delayed_operation import DelayedOperation
from purgatory.versions import LATEST, KafkaVersion


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """The answer for one partition. `base_offset` is -1 if nothing was appended; `required_offset`, one after the
    last record, is what the high watermark has to reach; `log_append_time` is -1 for records of create time."""

    error: Errors
    base_offset: int = UNKNOWN
    required_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    message: str = ""
    record_errors: RecordErrors = ()
    log_append_time: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class ProduceSnapshot:
    """A partition as a waiting produce sees it. `error`: unknown (3), known but elsewhere (6), offline (56)."""

    error: Errors = Errors.NONE
    is_leader: bool = True
    high_watermark: int = 0
    maximal_isr_size: int = 1
    effective_min_isr: int = 1


def must_delay_produce(required_acks: int, results: Mapping[TopicPartition, ProduceResult]) -> bool:
    """Whether a request waits after its append: acks=-1, and at least one partition took its records."""
    return required_acks == -1 and any(result.error is Errors.NONE for result in results.values())


def decide_produce(required_offset: int, snapshot: ProduceSnapshot) -> Errors | None:
    """The answer for a partition whose records were appended; None while they are not replicated.

    The number of replicas in sync is only looked at once the high watermark has passed: from 3.7 on it does not pass
    below min ISR, so a shrink leaves the request waiting; up to 3.6 the shrink itself moves it, hence code 20.
    """
    if snapshot.error is not Errors.NONE:
        return snapshot.error
    if not snapshot.is_leader:
        return Errors.NOT_LEADER_OR_FOLLOWER
    if snapshot.high_watermark < required_offset:
        return None
    if snapshot.maximal_isr_size < snapshot.effective_min_isr:
        return Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return Errors.NONE


class DelayedProduce(DelayedOperation):
    """`look` gives the snapshot of a partition, `respond` gets the answer, `expired` each partition that timed out."""

    # tidy: as many as Kafka's, and the two that differ by version and owner have defaults
    def __init__(
        self,
        timeout_ms: int,
        results: Mapping[TopicPartition, ProduceResult],
        look: Callable[[TopicPartition], ProduceSnapshot],
        respond: Callable[[Mapping[TopicPartition, ProduceResult]], None],
        *,
        expired: Callable[[TopicPartition], None] | None = None,
        lock: Monitor | None = None,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(timeout_ms, lock, version)
        self._look = look
        self._respond = respond
        self._expired = expired
        self._pending = [key for key, result in results.items() if result.error is Errors.NONE]
        self.results = dict(results)
        for key in self._pending:
            self.results[key] = replace(results[key], error=Errors.REQUEST_TIMED_OUT)

    @property
    def pending(self) -> tuple[TopicPartition, ...]:
        """Partitions that are not decided."""
        return tuple(self._pending)

    def try_complete(self) -> bool:
        """Decide what can be decided; complete when nothing is pending."""
        for key in self.pending:
            error = decide_produce(self.results[key].required_offset, self._look(key))
            if error is not None:
                self.results[key] = replace(self.results[key], error=error)
                self._pending.remove(key)
        return not self._pending and self.force_complete()

    def on_complete(self) -> None:
        """Answer."""
        self._respond(self.results)

    def on_expiration(self) -> None:
        """`pending` was not replicated in time."""
        if self._expired is not None:
            for key in self._pending:
                self._expired(key)
