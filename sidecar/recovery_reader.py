"""Reading what a recovery needs: commits and ledger from Kafka, the change-block number from Redis.

Runs in a thread of its own (`RecoveryWorker`), so that partitions already held go on firing meanwhile.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

from sidecar.block import decode, lane_key
from sidecar.commit import decode_metadata
from sidecar.lane import Lane
from sidecar.ledger import LedgerLog, LedgerTopic
from sidecar.overflow import Overflow
from sidecar.ports import Start, Starts
from sidecar.record import LaneId
from sidecar.recovery import Replay

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveryJob:
    """The recovery of one assignment, under way."""

    lanes: set[LaneId]  # not yet recovered
    started_ms: int
    future: Future[list[Lane]]
    retry_at_ms: int = -1  # when it failed for a reason that passes
    problem: str = ""  # why it waits
    told_ms: int = 0  # when the log was told


class RecoveryWorker:
    """Recovers the lanes of one assignment after another."""

    def __init__(
        self,
        starts: Starts,
        ledger: LedgerTopic,
        ledger_log: LedgerLog,
        overflow: Overflow,
        tick_ms: int,
        executor: Executor | None = None,
    ) -> None:
        self._starts = starts
        self._ledger = ledger
        self._log = ledger_log
        self._overflow = overflow
        self._tick_ms = tick_ms
        self._executor = executor or ThreadPoolExecutor(1, "recovery")

    def submit(self, lanes: Iterable[LaneId], now_ms: int) -> RecoveryJob:
        """Begin; the future gives the lanes or raises what makes recovery impossible.

        A lane whose start nobody knows for now is left out: that takes `again`.
        """
        wanted = sorted(lanes)
        return RecoveryJob(set(wanted), now_ms, self._executor.submit(self.recover, wanted, now_ms))

    def again(self, job: RecoveryJob, now_ms: int) -> None:
        """Once more, for those of its lanes that aren't recovered yet."""
        job.retry_at_ms = -1
        job.future = self._executor.submit(self.recover, sorted(job.lanes), now_ms)

    def stop(self) -> None:
        """Give up what is queued. Twice is harmless."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def recover(self, wanted: Sequence[LaneId], now_ms: int) -> list[Lane]:
        """Commit -> replay of the ledger from the recovery pointer -> lanes."""
        starts = self._starts.starts(wanted)
        replays: dict[bytes, Replay] = {}
        froms: dict[int, int] = {}
        untils: dict[int, int] = {}
        ends: dict[int, int] = {}
        for lane_id, start in starts.items():
            partition = self._ledger.partition_of(lane_id)
            first, end = self._log.bounds(partition)
            ends[partition] = max(end, ends.get(partition, 0))
            state = decode_metadata(start.offset, start.metadata) if start.metadata else None
            replay = Replay(lane_id, start, state, self._overflow.watermark(lane_id))
            replays[lane_key(lane_id.topic, lane_id.partition)] = replay
            place = self._replay_from(start, replay, first, end)
            froms[partition] = min(place, froms.get(partition, place))
            untils[partition] = max(replay.block_offset, untils.get(partition, -1))
        records = 0
        for record in self._log.read(froms, untils):
            if (replay_found := replays.get(record.key)) is not None:
                replay_found.block(record.offset, decode(record.value))
                records += 1
        lanes = [
            replay.lane(now_ms, self._tick_ms, ends[self._ledger.partition_of(replay.id)])
            for replay in replays.values()
        ]
        log.info("recovered", extra={"partitions": len(lanes), "blocks": records})
        return lanes

    def _replay_from(self, start: Start, replay: Replay, first: int, end: int) -> int:
        """Where in the ledger this lane's replay begins.

        Without a commit the partition is new, or the group's offsets have expired: then the blocks, which repeat
        L, W and A, are all there is, and the whole ledger is read for them.
        """
        state = decode_metadata(start.offset, start.metadata) if start.metadata else None
        if state is None:
            return first
        pointer = min(state.recovery_pointer, state.block_offset if state.block_offset >= 0 else end)
        if pointer < first:
            log.error(
                "the ledger no longer has all blocks that this partition needs: records settled in the missing ones "
                "may fire again; raise the ledger's retention.ms above the longest delay",
                extra={
                    "topic": replay.id.topic,
                    "partition": replay.id.partition,
                    "missing": first - pointer,
                },
            )
        return max(pointer, first)
