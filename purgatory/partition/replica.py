"""A follower as its leader knows it."""

from dataclasses import dataclass, replace

from purgatory.log_offsets import UNKNOWN, UNKNOWN_OFFSET, LogOffsetMetadata

NO_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Replica:
    """A follower by its fetches. Times are the leader's, in ms."""

    broker_id: int
    log_start_offset: int = UNKNOWN
    log_end: LogOffsetMetadata = UNKNOWN_OFFSET
    leader_log_end_at_last_fetch: int = 0
    last_fetch_ms: float = 0
    last_caught_up_ms: float = 0
    broker_epoch: int = NO_BROKER_EPOCH

    def is_caught_up(self, leader_log_end_offset: int, now_ms: float, lag_max_ms: int) -> bool:
        """Whether it has everything, or had everything that there was at most `lag_max_ms` ago."""
        return self.log_end.offset == leader_log_end_offset or now_ms - self.last_caught_up_ms <= lag_max_ms

    def fetched(self, fetch: "FollowerFetch", leader_log_end_offset: int, now_ms: float) -> "Replica":
        """Take in a fetch at `fetch.offset`: the follower has everything below.

        It is caught up now if that was the leader's end before the read; if it was the leader's end at its previous
        fetch, it was caught up then. So one that reads steadily, but never to the very end, is caught up too.
        """
        caught_up_ms = self.last_caught_up_ms
        if fetch.offset.offset >= leader_log_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif fetch.offset.offset >= self.leader_log_end_at_last_fetch:
            caught_up_ms = max(caught_up_ms, self.last_fetch_ms)
        return replace(
            self,
            log_start_offset=fetch.log_start_offset,
            log_end=fetch.offset,
            leader_log_end_at_last_fetch=max(leader_log_end_offset, self.leader_log_end_at_last_fetch),
            last_fetch_ms=now_ms,
            last_caught_up_ms=caught_up_ms,
            broker_epoch=fetch.broker_epoch,
        )


@dataclass(frozen=True, slots=True)
class FollowerFetch:
    """Part of a follower's fetch that is about the follower itself."""

    broker_id: int
    offset: LogOffsetMetadata
    log_start_offset: int = 0
    broker_epoch: int = NO_BROKER_EPOCH


def at_leader_change(broker_id: int, in_isr: bool, now_ms: float) -> Replica:
    """A follower of which a new leader knows nothing yet. One in the ISR gets the full lag time to show itself."""
    return Replica(
        broker_id,
        leader_log_end_at_last_fetch=UNKNOWN,
        last_caught_up_ms=now_ms if in_isr else 0,
    )
