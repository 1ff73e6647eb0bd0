"""The controllers' quorum, as KRaft would have it of these brokers: each of them is a voter, the controller leads.

There is one controller in the process and one copy of the metadata, so there are no votes, and nothing is replicated.
What can be said of a quorum is true all the same: who leads since which epoch, how many changes have been written down,
who has them all, and how far somebody was who is gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NOBODY: Final = -1
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class VoterState:
    """How far a voter has read the log of metadata, and when it was last seen to; times in ms."""

    log_end_offset: int = UNKNOWN
    last_fetch_ms: int = UNKNOWN
    last_caught_up_ms: int = UNKNOWN


class Quorum:
    """`epoch` and `end_offset` go on over restarts: the first leader after one has an epoch of its own."""

    def __init__(self, epoch: int = 0, end_offset: int = 0) -> None:
        self.epoch = epoch
        self.end_offset = end_offset
        self.leader_id = NOBODY
        self._present: frozenset[int] = frozenset()
        self._gone: dict[int, VoterState] = {}

    def append(self, leader_id: int, present: Iterable[int], now_ms: int) -> None:
        """A change of the metadata is written down, by this leader, for these brokers."""
        alive = frozenset(present)
        for broker_id in self._present - alive:
            self._gone[broker_id] = VoterState(self.end_offset, now_ms, now_ms)
        self._present = alive
        if leader_id not in (NOBODY, self.leader_id):
            self.epoch += 1
        self.leader_id = leader_id
        self.end_offset += 1

    def voter(self, broker_id: int, now_ms: int) -> VoterState:
        """One that is there has everything; of one that wasn't there since the start nothing is known."""
        if broker_id in self._present:
            return VoterState(self.end_offset, now_ms, now_ms)
        return self._gone.get(broker_id, VoterState())
