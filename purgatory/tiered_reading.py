"""Fetches of what only tiered storage has: the log begins later on this broker's disk than the partition does."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from purgatory.delayed_fetch import FetchParams, FetchPartition
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.delayed_remote import DelayedRemoteFetch
from purgatory.errors import ApiError, Errors
from purgatory.fetch_reading import LogReadResult, ReadRemote, ReadResults
from purgatory.log_offsets import TopicPartition

REMOTE_PURGE_INTERVAL = (
    0  # a completed fetch holds what was read, up to 50 MB: forget it at the next look (KAFKA-19763)
)

_log = logging.getLogger(__name__)


class TieredReading:
    """Waits for the store in place of consumers; followers are told to begin where the leader's disk does."""

    def __init__(
        self,
        read_remote: ReadRemote,
        find: Callable[[TopicPartition], Any],
        purgatory: DelayedOperationPurgatory[DelayedRemoteFetch],
        make: Callable[..., DelayedRemoteFetch],
    ) -> None:
        self._read_remote = read_remote
        self._find = find
        self._purgatory = purgatory
        self._make = make

    def fetch(
        self,
        params: FetchParams,
        partitions: Sequence[tuple[TopicPartition, FetchPartition]],
        local: ReadResults,
        respond: Callable[[ReadResults], None],
    ) -> None:
        """Read the first partition that needs it; what was read of the others is answered with it.

        Further ones are answered empty: the consumer asks for them again.
        """
        place = next(index for index, (_, result) in enumerate(local) if result.is_remote)
        key, wanted = partitions[place]

        def answer(read: Any | None) -> None:
            respond([(one, _merged(result, read) if one == key else result) for one, result in local])

        try:
            remote = self._read_remote(key, wanted, min(wanted.max_bytes, params.max_bytes))
        except Exception as error:  # noqa: BLE001 - the store's; the other partitions are not to blame
            answer(error)
            return
        keys = [key for key, _ in partitions]
        self._purgatory.try_complete_else_watch(self._make(params, remote, keys, self._error_of, answer), keys)
        remote.add_done_callback(lambda _: self._purgatory.check_and_complete(key))

    def _error_of(self, key: TopicPartition) -> Errors:
        try:
            self._find(key)
        except ApiError as error:
            return error.error
        return Errors.NONE


def _merged(local: LogReadResult, read: Any | None) -> LogReadResult:
    if read is None:
        return local
    if isinstance(read, BaseException):
        if isinstance(read, ApiError):
            return LogReadResult(read.error)
        _log.error("a read of tiered storage failed", exc_info=read)
        return LogReadResult(Errors.UNKNOWN_SERVER_ERROR)
    return replace(local, data=read, is_remote=False)
