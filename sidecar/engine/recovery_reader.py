"""Reading what a recovery needs: commits and ledger from Kafka, the change-block number from Redis.

Runs in a thread of its own (`RecoveryWorker`), so that partitions already held go on firing meanwhile.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.recovery import Replay
from sidecar.engine.source_cuts import SourceCuts, end_of
from sidecar.ledger.block import decode, lane_key
from sidecar.ledger.commit_metadata import CommitState, decode_metadata
from sidecar.ledger.topic import LedgerError, LedgerLog, LedgerRecord, LedgerTopic
from sidecar.model.ports import Start, Starts
from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import Overflow, OverflowLoss

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveryJob:
    """The recovery of one assignment, under way."""

    lanes: set[TopicPartition]  # not yet recovered
    started_ms: int
    future: Future[list[SourcePartition]]
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
        self._cuts = SourceCuts(starts)
        self._ledger = ledger
        self._log = ledger_log
        self._overflow = overflow
        self._tick_ms = tick_ms
        self._executor = executor or ThreadPoolExecutor(1, "recovery")

    def submit(self, lanes: Iterable[TopicPartition], now_ms: int) -> RecoveryJob:
        """Begin; the future gives the lanes or raises what makes recovery impossible.

        A lane whose start nobody knows for now is left out: that takes `again`.
        """
        wanted = sorted(lanes)
        return RecoveryJob(set(wanted), now_ms, self._executor.submit(self.recover, wanted, now_ms))

    def again(self, job: RecoveryJob, now_ms: int) -> None:
        """Once more, for those of its lanes that aren't recovered yet."""
        job.retry_at_ms = -1
        job.future = self._executor.submit(self.recover, sorted(job.lanes), now_ms)

    def look_at(self, lane: SourcePartition) -> Future[int | None]:
        """To where the log of a lane that is read was cut back since; None when it wasn't.

        It may raise LedgerUnavailable, and SourceChangedError.
        """
        return self._executor.submit(self._cuts.look_at, lane.id, lane.topic_id, lane.read_marks, end_of(lane))

    def may_read(self, topic: str) -> Future[bool]:
        """Whether the brokers let this process read a source; the future may raise LedgerUnavailable."""
        return self._executor.submit(self._starts.may_read, topic)

    def stop(self) -> None:
        """Give up what is queued. Twice is harmless."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def recover(self, wanted: Sequence[TopicPartition], now_ms: int) -> list[SourcePartition]:
        """Commit -> replay of the ledger from the recovery pointer -> lanes.

        Commits say how far their blocks go. Lanes without a commit need all that the ledger has by now, also what is in
        others' open transactions: they are left out, for `again`, while there are lanes that needn't wait.
        Raises LedgerError where the ledger isn't the one that commits speak of, or has lost all that it knew of a lane.
        """
        begun = [self._begin(lane_id, start) for lane_id, start in self._starts.starts(wanted).items()]
        begun = [one for one in begun if one.state is not None] or begun
        try:
            blocks = self._read(begun)
        except LedgerError as error:
            self._go_on_without(str(error))
            for one in begun:
                one.give_up_beyond_end()
            blocks = self._read(begun)
        begun = self._with_cuts(begun)
        for one in begun:
            if missing := self._missing(one):
                self._go_on_without(missing)
                one.replay.trust_overflow()
            if one.state is None and 0 <= one.replay.read_to < one.replay.low:
                log.warning(
                    "offsets were set forward, or the source's retention took records that were open here",
                    extra={"source_partition": str(one.replay.id), "from": one.replay.read_to, "to": one.replay.low},
                )
        log.info("recovered", extra={"partitions": len(begun), "blocks": blocks})
        return [one.replay.lane(now_ms, self._tick_ms, one.bounds[1]) for one in begun]

    def _begin(self, lane_id: TopicPartition, start: Start) -> "_Begun":
        """A lane's replay, and from where in the ledger it is fed.

        Without a commit the partition is new, or the group's offsets have expired: then the blocks, which repeat
        `low`, the watermark and `acknowledged`, are all there is, and the whole ledger is read for them.
        """
        partition = self._ledger.partition_of(lane_id)
        first, end = self._log.bounds(partition)
        state = decode_metadata(start.offset, start.metadata) if start.metadata else None
        changed = _changed(self._ledger, state) if state is not None else ""
        if state is not None and changed:
            self._go_on_without(f"{changed}, so what it said of {lane_id} is gone")
            state = replace(state, block_offset=-1, recovery_pointer=first, rebuild_pointer=first)
        pointer = first
        if state is not None:
            pointer = min(state.recovery_pointer, state.block_offset if state.block_offset >= 0 else end)
        if pointer < first:
            log.error(
                "the ledger no longer has all blocks that this partition needs: records settled in the missing ones "
                "may fire again; raise the ledger's retention.ms above the longest hold",
                extra={"topic": lane_id.topic, "partition": lane_id.partition, "missing": first - pointer},
            )
        whole = pointer >= first if state is not None else first == 0
        replay = Replay(lane_id, start, state, self._number_in_redis(lane_id), whole=whole)
        if changed:
            replay.trust_overflow()
        own_block = state.block_offset if state is not None and state.block_offset >= first else -1
        return _Begun(partition, (first, end), start, state, replay, max(pointer, first), own_block)

    def _number_in_redis(self, lane_id: TopicPartition) -> int:
        """Number of the last change block that Redis has.

        A loss doesn't stop the recovery: the next read, or `LossCheck` within a second, notes it.
        """
        try:
            return self._overflow.last_applied(lane_id)
        except OverflowLoss as error:
            return error.number

    def _read(self, begun: Sequence["_Begun"]) -> int:
        """Feed the replays; returns the number of blocks."""
        froms: dict[int, int] = {}
        untils: dict[int, int] = {}
        for one in begun:
            froms[one.partition] = min(one.pointer, froms.get(one.partition, one.pointer))
            if one.state is not None:
                untils[one.partition] = max(one.own_block, untils.get(one.partition, -1))
        by_key = {lane_key(*one.replay.id): one for one in begun}
        blocks = 0
        for record in self._log.read(froms, untils):
            if (found := by_key.get(record.key)) is not None:
                found.take(record)
                blocks += 1
        return blocks

    def _with_cuts(self, begun: Sequence["_Begun"]) -> list["_Begun"]:
        """Note where logs were cut back since they were read. Those are left out that nobody can tell of for now."""
        known = self._cuts.find([(one.replay, one.start) for one in begun])
        return [one for one in begun if one.replay.id in known]

    def _missing(self, one: "_Begun") -> str:
        """Gap in the ledger, in words: what it should know of a lane and doesn't; empty when all is well."""
        lane = one.replay.id
        if one.own_block >= 0:
            return (
                f"the commit of {lane} names ledger block {one.partition}/{one.own_block}, and what is there isn't of "
                f"{lane}: the ledger was cut, created again, or given more partitions"
            )
        if one.state is not None or one.replay.met or one.start.made_anew or one.bounds[0] == 0:
            return ""
        if one.replay.hw <= 0 and self._starts.has_commits():
            return ""  # the group knows others: this lane is new
        return (
            f"nothing is left of {lane}: its commit has expired, and the ledger has lost its beginning, so nobody "
            "knows what has fired"
        )

    def _go_on_without(self, missing: str) -> None:
        """The ledger lacks what it must have: raises LedgerError unless the operator has said to go on."""
        if self._ledger.when_lost == "refuse":
            raise LedgerError(
                f"{missing}. Put the ledger back as it was. Or start once with ledger.when_lost=continue: partitions "
                "go on from their commits, and without one where `start` says, and may fire again what was settled"
            )
        log.error("going on without a part of the ledger: records may fire again", extra={"missing": missing})


@dataclass(slots=True)
class _Begun:
    """A lane whose replay is fed. `own_block`: the place of the commit's own block, -1 once it was met there."""

    partition: int
    bounds: tuple[int, int]  # of the ledger's partition
    start: Start
    state: CommitState | None
    replay: Replay
    pointer: int
    own_block: int

    def give_up_beyond_end(self) -> None:
        """The ledger was cut: blocks that lie beyond its end aren't waited for."""
        if self.own_block >= self.bounds[1]:
            self.own_block = -1
            self.replay.trust_overflow()

    def take(self, record: LedgerRecord) -> None:
        if record.offset == self.own_block:
            self.own_block = -1
        self.replay.block(record.offset, decode(record.value))


def _changed(ledger: LedgerTopic, state: CommitState) -> str:
    """How the ledger differs from the one that a commit speaks of; empty when it doesn't, or nobody knows."""
    if state.ledger_id and ledger.id and state.ledger_id != ledger.id:
        return f"the ledger topic {ledger.name} was deleted and created again"
    if state.ledger_partitions and state.ledger_partitions != ledger.partitions:
        return f"the ledger topic {ledger.name} has {ledger.partitions} partitions and had {state.ledger_partitions}"
    return ""
