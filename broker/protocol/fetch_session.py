"""Fetch sessions: a client that fetches the same partitions again names only what has changed, and so does the answer.

request   session id, epoch   meaning
          any, -1             no session; one of that id ends
          any, 0              all partitions are named; a session begins if there is room, one of that id ends
          id, n               partitions that are new, changed or forgotten; n counts the session's requests
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from purgatory.delayed.delayed_fetch import FetchPartition
from purgatory.errors import ApiError, Errors

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
INT_MAX: Final = (1 << 31) - 1
EVICTION_MS: Final = 120_000
UNKNOWN: Final = -1


class FetchedPartition(NamedTuple):
    """A partition as the client names it. The name may be unknown (None) where an id is given."""

    name: str | None
    topic_id: str | None
    partition: int


@dataclass(slots=True)
class CachedPartition:
    """A partition in a session: as it was asked for last, and as it was told of last."""

    wanted: FetchPartition
    high_watermark: int = UNKNOWN
    log_start_offset: int = UNKNOWN

    def has_news(self, row: Mapping[str, Any]) -> bool:
        """Whether the client must be told; from then on it is known."""
        has_failed = row["error_code"] != Errors.NONE
        is_told = (
            has_failed
            or bool(row["records"])
            or row["high_watermark"] != self.high_watermark
            or row["log_start_offset"] != self.log_start_offset
            or "diverging_epoch" in row
            or "preferred_read_replica" in row
        )
        # After an error everything is told anew.
        self.high_watermark = UNKNOWN if has_failed else row["high_watermark"]
        self.log_start_offset = UNKNOWN if has_failed else row["log_start_offset"]
        return is_told


@dataclass(slots=True)
class FetchSession:
    """Partitions in the order in which they are read: what gave something goes to the end."""

    session_id: int
    uses_topic_ids: bool
    partitions: dict[FetchedPartition, CachedPartition] = field(default_factory=dict)
    epoch: int = 1
    last_used_ms: float = 0


@dataclass(slots=True)
class FetchContext:
    """One request: what to read, and how its answer is made."""

    wanted: Mapping[FetchedPartition, FetchPartition]
    session: FetchSession | None = None
    is_incremental: bool = False

    def answered(
        self, rows: Iterable[tuple[FetchedPartition, Mapping[str, Any]]]
    ) -> list[tuple[FetchedPartition, Any]]:
        """The rows that the answer has."""
        session = self.session
        if session is None:
            return list(rows)
        told = []
        for key, row in rows:
            cached = session.partitions.get(key)
            if cached is None:
                continue  # the session's next request came first: only after its connection was lost
            if cached.has_news(row) or not self.is_incremental:
                told.append((key, row))
            if row["records"]:
                session.partitions[key] = session.partitions.pop(key)
        return told


class FetchSessionCache:
    """At most `sessions_max`; a new one may take the place of one that wasn't used for two minutes. `draw(n)` gives a
    number below n, times are in ms."""

    def __init__(self, sessions_max: int, draw: Callable[[int], int]) -> None:
        self.sessions: dict[int, FetchSession] = {}
        self._sessions_max = sessions_max
        self._draw = draw

    def context(
        self,
        session: tuple[int, int],
        named: Mapping[FetchedPartition, FetchPartition],
        forgotten: Iterable[FetchedPartition],
        now_ms: float,
        *,
        uses_topic_ids: bool,
    ) -> FetchContext:
        """For a request of this (session id, epoch). ApiError: the session is not known, or has another epoch."""
        session_id, epoch = session
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.sessions.pop(session_id, None)
            begun = self._begin(named, now_ms, uses_topic_ids=uses_topic_ids) if epoch == INITIAL_EPOCH else None
            return FetchContext(named, begun)
        known = self.sessions.get(session_id)
        if known is None:
            raise ApiError(Errors.FETCH_SESSION_ID_NOT_FOUND)
        if known.epoch != epoch:
            raise ApiError(Errors.INVALID_FETCH_SESSION_EPOCH)
        if known.uses_topic_ids != uses_topic_ids:
            raise ApiError(Errors.FETCH_SESSION_TOPIC_ID_ERROR)
        _update(known, named, forgotten)
        known.epoch = 1 if epoch == INT_MAX else epoch + 1
        known.last_used_ms = now_ms
        wanted = {key: cached.wanted for key, cached in known.partitions.items()}
        if not wanted:
            del self.sessions[session_id]
            return FetchContext(wanted)
        return FetchContext(wanted, known, is_incremental=True)

    def _begin(
        self, named: Mapping[FetchedPartition, FetchPartition], now_ms: float, *, uses_topic_ids: bool
    ) -> FetchSession | None:
        if not named:
            return None
        if len(self.sessions) >= self._sessions_max:
            oldest = min(self.sessions.values(), key=lambda session: session.last_used_ms)
            if now_ms - oldest.last_used_ms <= EVICTION_MS:
                return None
            del self.sessions[oldest.session_id]
        session_id = 1 + self._draw(INT_MAX)
        while session_id in self.sessions:
            session_id = 1 + self._draw(INT_MAX)
        cached = {key: CachedPartition(wanted) for key, wanted in named.items()}
        session = self.sessions[session_id] = FetchSession(session_id, uses_topic_ids, cached, last_used_ms=now_ms)
        return session


def _update(
    session: FetchSession, named: Mapping[FetchedPartition, FetchPartition], forgotten: Iterable[FetchedPartition]
) -> None:
    """A topic that has been deleted since is still known here by its name."""
    known = {(key.topic_id or key.name, key.partition): key for key in session.partitions}
    for key, wanted in named.items():
        same = known.get((key.topic_id or key.name, key.partition))
        if same is None:
            session.partitions[key] = CachedPartition(wanted)
        else:
            session.partitions[same].wanted = wanted
    for key in forgotten:
        same = known.get((key.topic_id or key.name, key.partition))
        if same is not None:
            session.partitions.pop(same, None)
