"""Reads from tiered storage: futures of a slow store, with a time limit."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from purgatory.delayed_fetch import FetchParams
from purgatory.delayed_operation import DelayedOperation
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import NO_EPOCH, UNKNOWN, TopicPartition
from purgatory.versions import LATEST, KafkaVersion

REMOTE_FETCH_MAX_WAIT_MS = 500
ENDS_REMOTE_FETCH = frozenset(
    {Errors.NOT_LEADER_OR_FOLLOWER, Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.KAFKA_STORAGE_ERROR}
)


def decide_remote_fetch(partition_errors: Sequence[Errors], is_read: bool) -> bool:
    """Whether to answer: a partition has gone (cases a, b, d), or the remote read is done (c)."""
    return is_read or any(error in ENDS_REMOTE_FETCH for error in partition_errors)


class DelayedRemoteFetch(DelayedOperation):
    """A consumer's fetch of which one partition is read from remote storage.

    `look` gives each partition's error; `respond(result)` answers with what was read locally and, for `remote`,
    the future's result if it is done: a local error of that partition comes first, whatever the future says. `expired`
    is told of the timeout.
    """

    # tidy: fewer than Kafka's, and the last three have defaults
    def __init__(
        self,
        params: FetchParams,
        remote: Future[Any],
        partitions: Sequence[TopicPartition],
        look: Callable[[TopicPartition], Errors],
        respond: Callable[[Any | None], None],
        *,
        local_error: Errors = Errors.NONE,
        expired: Callable[[], None] | None = None,
        version: KafkaVersion = LATEST,
    ) -> None:
        if params.is_from_follower:
            raise ValueError(f"follower {params.replica_id} does not read from remote storage")
        super().__init__(REMOTE_FETCH_MAX_WAIT_MS, version=version)
        self.remote = remote
        self._partitions = partitions
        self._look = look
        self._respond = respond
        self._local_error = local_error
        self._expired = expired

    def try_complete(self) -> bool:
        """Is a partition gone, or the read done?"""
        errors = [self._look(key) for key in self._partitions]
        return decide_remote_fetch(errors, self.remote.done()) and self.force_complete()

    def on_complete(self) -> None:
        """Answer; an error of the remote read is part of the answer."""
        if self._local_error is not Errors.NONE or not self.remote.done() or self.remote.cancelled():
            self._respond(None)
        else:
            self._respond(self.remote.exception() or self.remote.result())

    def on_expiration(self) -> None:
        """Nobody waits for the read any more. One that runs already is let run, as Kafka does since 4.0."""
        self.remote.cancel()
        if self._expired is not None:
            self._expired()


@dataclass(frozen=True, slots=True)
class ListOffsetsResult:
    """The answer for one partition: -1 where there is nothing."""

    error: Errors = Errors.NONE
    timestamp_ms: int = UNKNOWN
    offset: int = UNKNOWN
    leader_epoch: int = NO_EPOCH


def decide_remote_list_offsets(partition_error: Errors, look_up: Future[ListOffsetsResult]) -> ListOffsetsResult | None:
    """The answer for one partition, None while its look-up runs. The partition's own error comes first."""
    if partition_error is not Errors.NONE:
        return ListOffsetsResult(partition_error)
    if not look_up.done():
        return None
    failure = look_up.exception() if not look_up.cancelled() else ApiError(Errors.REQUEST_TIMED_OUT)
    if failure is not None:
        return ListOffsetsResult(failure.error if isinstance(failure, ApiError) else Errors.UNKNOWN_SERVER_ERROR)
    return look_up.result()


class DelayedRemoteListOffsets(DelayedOperation):
    """A ListOffsets of which some partitions are looked up remotely. `results` are those decided already."""

    def __init__(
        self,
        timeout_ms: int,
        look_ups: Mapping[TopicPartition, Future[ListOffsetsResult]],
        results: Mapping[TopicPartition, ListOffsetsResult],
        look: Callable[[TopicPartition], Errors],
        respond: Callable[[Mapping[TopicPartition, ListOffsetsResult]], None],
        *,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(timeout_ms, version=version)
        self._pending = dict(look_ups)
        self._look = look
        self._respond = respond
        self.results = dict(results)
        self.expired = 0

    def try_complete(self) -> bool:
        """Decide what can be decided; a partition that has gone needs no look-up."""
        for key, look_up in tuple(self._pending.items()):
            result = decide_remote_list_offsets(self._look(key), look_up)
            if result is not None:
                look_up.cancel()  # no effect on one that is done
                self.results[key] = result
                del self._pending[key]
        return not self._pending and self.force_complete()

    def on_complete(self) -> None:
        """Answer; what is pending has timed out."""
        late = {key: ListOffsetsResult(Errors.REQUEST_TIMED_OUT) for key in self._pending}
        self._respond({**self.results, **late})

    def on_expiration(self) -> None:
        """Nobody waits for the look-ups any more. `expired` counts partitions."""
        self.expired += len(self._pending)
        for look_up in self._pending.values():
            look_up.cancel()
