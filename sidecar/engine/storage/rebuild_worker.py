"""The engine's side of a rebuild: which lane, how fast, and what it comes to.

Lanes that lost something are rebuilt one after another, those with least to do first; one piece of work at a time is
given to the rebuild's thread, the next when the rate allows it. Meanwhile everything else goes on: other lanes, and
this lane's wheel. A rebuild may be given up at any time: the next one goes on from Redis's number.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from math import inf
from typing import Final

from sidecar.engine.counters import EngineCounters
from sidecar.engine.partition.change_block import Loss
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.storage.rebuild import LaneRebuild, RebuildPlan, RebuildResult, Sources, fetch
from sidecar.ledger.topic import LedgerUnavailable
from sidecar.model.log_cuts import Cuts
from sidecar.model.ports import SourceRecord, SourceUnavailable, is_over
from sidecar.model.record import Position, TopicPartition
from sidecar.overflow.interface import OverflowFull, OverflowLoss, OverflowUnavailable, Promotion

log = logging.getLogger(__name__)

WAITS: Final = (OverflowUnavailable, OverflowFull, LedgerUnavailable, SourceUnavailable)  # a rebuild tries again
STEPS_MAX: Final = 4  # of a piece of work: between two pieces the thread waits for a turn of the engine
PIECES_PER_SECOND: Final = 5  # at the least, where the rate is limited: a piece writes no more than its share
RETRY_MS: Final = 500
AGAIN_MS: Final = 1_000  # a Redis that goes on losing must not keep us busy
SAY_MS: Final = 5_000  # between two lines of progress


class RebuildWorker:
    """Rebuilds lanes that have a `loss`. `step` is called once a turn by the engine."""

    def __init__(
        self, sources: Sources, tally: EngineCounters, records_per_second: int, executor: Executor | None = None
    ) -> None:
        self._sources = sources
        self._tally = tally
        self._rate = records_per_second
        self._share = records_per_second / PIECES_PER_SECOND if records_per_second else inf
        self._executor = executor or ThreadPoolExecutor(1, "rebuild")
        self._lane: SourcePartition | None = None
        self._rebuild: LaneRebuild
        self._piece: Future[int] | None = None
        self._started_ms = self._given_ms = self._next_ms = self._said_ms = self._owe_again_ms = 0

    @property
    def is_awaiting(self) -> bool:
        """A lane is being rebuilt."""
        return self._lane is not None

    def stop(self) -> None:
        """Give up what is under way and end the thread. Twice is harmless."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def fetch(self, lane: TopicPartition, cuts: Cuts, offsets: Sequence[int]) -> Future[Mapping[int, SourceRecord]]:
        """Read records of a source again, beside the group, by the lane's own offsets; those that it has no more are
        left out. It may raise SourceUnavailable.
        """
        source = self._sources.source

        def fetched() -> Mapping[int, SourceRecord]:
            try:
                return fetch(source, lane, cuts, offsets)
            finally:
                source.release()

        return self._executor.submit(fetched)

    def read(self, lane: TopicPartition, after: Position, records_max: int, acknowledged: int) -> Future[Promotion]:
        """Read what a lane has in the overflow, a page of it: see `RebuildStore.read`."""
        return self._executor.submit(self._sources.store.read, lane, after, records_max, acknowledged)

    def step(self, lanes: Iterable[SourcePartition], now_ms: int) -> None:
        """Take in what was done, then give out the next piece."""
        if self._piece is not None:
            if not self._piece.done():
                return
            piece, self._piece = self._piece, None
            self._take_in(piece, now_ms)
        if self._lane is not None and (self._lane.dropped or self._lane.leaving):
            self._let_go()
        if self._lane is None:
            self._choose(lanes, now_ms)
        if self._lane is not None and not self._rests(now_ms):
            self._given_ms = now_ms
            self._piece = self._executor.submit(_work, self._rebuild, now_ms, self._share)

    def _rests(self, now_ms: int) -> bool:
        return self._given_ms <= now_ms < self._next_ms  # before: the clock was set back

    def _choose(self, lanes: Iterable[SourcePartition], now_ms: int) -> None:
        lost = [lane for lane in lanes if lane.loss is not None and not lane.dropped]
        if not lost or self._rests(now_ms):
            return
        known = [lane for lane in lost if not lane.ledger.from_redis]
        if len(known) < len(lost):
            self._ask_for_commits([lane for lane in lost if lane.ledger.from_redis], now_ms)
        if not known:
            return
        lane = min(known, key=_size)
        loss = lane.loss
        assert loss is not None
        loss.records_total = lane.overflow_held
        self._lane = lane
        self._rebuild = LaneRebuild(plan_of(lane, loss), self._sources, loss)
        self._started_ms = self._said_ms = now_ms
        log.warning(
            "rebuilding the overflow of a partition",
            extra={"source_partition": str(lane.id), "held": lane.overflow_held},
        )

    def _ask_for_commits(self, lost: Iterable[SourcePartition], now_ms: int) -> None:
        """Owe commits that say from where these lanes number their changes, again and again: one may be refused.

        Where the number that Redis has decides that, Redis must not have another one before. A former owner that
        doesn't know yet that it is that, and its successor, would number from different ones, and take each other's
        changes for their own.
        """
        if not is_over(now_ms, self._owe_again_ms, AGAIN_MS):
            return
        self._owe_again_ms = now_ms + AGAIN_MS
        for lane in lost:
            lane.owe_commit()
            assert lane.loss is not None
            lane.loss.problem = "it waits for a commit that says from where changes are numbered"

    def _take_in(self, piece: "Future[int]", now_ms: int) -> None:
        lane = self._lane
        assert lane is not None
        try:
            written = piece.result()
        except WAITS as error:
            if lane.loss is not None and lane.loss.problem != str(error):
                lane.loss.problem = str(error)
                log.warning("a rebuild waits", extra={"source_partition": str(lane.id), "problem": lane.loss.problem})
            self._next_ms = now_ms + RETRY_MS
            return
        except OverflowLoss as error:
            log.warning("Redis lost data again", extra={"source_partition": str(lane.id), "detail": str(error)})
            lane.loss = lane.loss_of(error.hw, str(error))
            self._next_ms = now_ms + AGAIN_MS
            self._let_go()
            return
        if lane.loss is not None:
            lane.loss.problem = ""
        self._tally.rebuilt[lane.id.topic] += written
        self._next_ms = self._given_ms + (written * 1_000 // self._rate if self._rate else 0)
        if self._rebuild.result is not None:
            self._finish(lane, self._rebuild.result, now_ms)
        elif now_ms - self._said_ms >= SAY_MS and lane.loss is not None:
            self._said_ms = now_ms
            log.info("rebuilding", extra={"source_partition": str(lane.id), "done": lane.loss.records_done,
                                          "held": lane.loss.records_total})  # fmt: skip

    def _finish(self, lane: SourcePartition, result: RebuildResult, now_ms: int) -> None:
        topic, partition = lane.id
        if not (lane.dropped or lane.leaving):
            _correct(lane, self._rebuild.plan.held - result.held)
            self._tally.lost[topic, "source"] += result.lost_to_source
            self._tally.lost[topic, "ledger"] += result.lost_to_ledger
            self._tally.rebuilds += 1
        self._let_go()
        ms = max(now_ms - self._started_ms, 1)
        log.warning(
            "the overflow of a partition is rebuilt",
            extra={"source_partition": f"{topic}/{partition}", "written": result.written, "held": result.held, "ms": ms,
                   "reconciled": result.reconciled},
        )  # fmt: skip
        if result.lost_to_source:
            log.error(
                "records can't be put back: the source's retention took their payloads; raise retention.ms and "
                "retention.bytes of the topic",
                extra={"topic": topic, "partition": partition, "count": result.lost_to_source,
                       "first_offset": result.first_lost_offset},
            )  # fmt: skip
        if result.lost_to_ledger:
            log.error(
                "records can't be put back: the ledger no longer has their entries; raise its retention.ms, by "
                "ledger.retention when it is created",
                extra={"ledger": self._sources.ledger.name, "topic": topic, "partition": partition,
                       "count": result.lost_to_ledger, "blocks_missing": result.blocks_missing},
            )  # fmt: skip
        if not result.reconciled:
            log.error(
                "Redis holds other records than the ledger says after a rebuild",
                extra={"topic": topic, "partition": partition},
            )

    def _let_go(self) -> None:
        self._lane = None
        self._executor.submit(self._rebuild.close)


def _work(rebuild: LaneRebuild, now_ms: int, share: float) -> int:
    """Some steps, on the rebuild's thread; returns how many records they wrote."""
    written = rebuild.step(now_ms)
    for _ in range(STEPS_MAX - 1):
        if rebuild.result is not None or written >= share:
            break
        try:
            written += rebuild.step(now_ms)
        except (*WAITS, OverflowLoss):
            break  # the next piece begins with this step, and tells
    return written


def plan_of(lane: SourcePartition, loss: Loss) -> RebuildPlan:
    """Plan for the rebuild of a lane. Nothing of the lane is promoted or put until the rebuild is done."""
    return RebuildPlan(
        lane=lane.id,
        topic_id=lane.topic_id,
        hw=loss.hw,
        acknowledged=lane.acknowledged,
        watermark=lane.ledger.committed_watermark,  # from there on the lane's next owner expects all that was put
        cursor=lane.promotion.cursor,
        skip=frozenset(lane.promotion.skip),
        held=lane.overflow_held - _promoted(lane) - sum(map(lane.offsets.is_done, lane.promotion.struck)),
        recovery_pointer=lane.recovery_pointer(),
        rebuild_pointer=lane.rebuild_pointer(),
        block_offset=lane.ledger.block_offset,
        first_change=lane.first_change,
        cuts=lane.cuts,
    )


def _promoted(lane: SourcePartition) -> int:
    """Records in the overflow's care that are in the wheel: they need no copy to be emitted."""
    return sum(window.unsettled for window in lane.promotion.windows)


def _correct(lane: SourcePartition, lost: int) -> None:
    """The rebuild is done: go on with what there is. What left the lane meanwhile is in neither count."""
    lane.overflow_held -= lost
    lane.overflow_sealed -= lost
    lane.lost += lost
    lane.loss = None
    lane.touch()  # the next block and commit have the corrected count
    lane.owe_commit()


def _size(lane: SourcePartition) -> int:
    return lane.overflow_held
