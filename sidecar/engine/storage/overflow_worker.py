"""The engine's side of the overflow: one thread that talks to Redis, so that a slow Redis never stalls the wheel.

The engine's thread decides (which change blocks to apply, how far a cursor may move) and takes the results in; the
worker thread only carries values to Redis and back. Jobs run strictly in the order they were submitted.

The cursor's rules:
* it moves to now + horizon, or as far as the wheel has room;
* it never reaches the earliest record that is only on its way to the overflow;
* while a promotion is under way, `lane.promotion.promised` is what newly read records are compared with.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from policies.headers import OFFSET_MAX
from sidecar.engine.partition.change_block import ChangeBlock
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.storage.cursors import Cursors
from sidecar.engine.storage.loss_check import LossCheck
from sidecar.model.ports import is_over
from sidecar.model.record import Held, Position, just_before
from sidecar.overflow.interface import (
    Change,
    Overflow,
    OverflowFailure,
    OverflowFull,
    OverflowLoss,
    OverflowRefused,
    OverflowUnavailable,
    Promotion,
)

PROMOTION_RECORDS_MAX: Final = 10_000
CHANGES_PER_JOB_MAX: Final = 64
JOBS_MAX: Final = 4
STEPS_PER_HORIZON: Final = 16
SOON_MS: Final = 1_000  # what is due within this time isn't sent to the overflow
PASSED_OVER: Final = (
    "Redis has records at offsets that are still to be read, or held otherwise: they are passed over; what the source "
    "has there is decided as it is read"
)
RETRY_FIRST_MS: Final = 100
RETRY_MAX_MS: Final = 500  # an overflow that is back is used again within a second

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Job:
    """One piece of work and what follows from it, on the engine's thread."""

    lanes: list[SourcePartition]
    future: Future[Any]
    done: Callable[[Any], None]
    undone: Callable[[], None]
    writes: bool

    def refuses_writes(self, error: OverflowFailure) -> bool:
        """Whether this failure is one of writing, while reading may go on."""
        return isinstance(error, OverflowFull) or (self.writes and isinstance(error, OverflowRefused))


@dataclass(slots=True)
class Applying:
    """Change blocks on their way: the last number of each lane. `happened` is for the overflow's thread alone."""

    numbers: Mapping[SourcePartition, int]
    happened: bool = False

    def needed(self, lane: SourcePartition) -> Callable[[], int]:
        """How many blocks Redis must have when a job runs that is submitted now, after these.

        By the time its answer comes, the engine has forgotten what these blocks strike out. If Redis lost them
        meanwhile, it would give struck records as held, and `acknowledged` of now would not show it.
        """
        acknowledged = lane.acknowledged
        return lambda: max(acknowledged, self.numbers.get(lane, 0)) if self.happened else acknowledged


class OverflowWorker:
    """Applies change blocks, promotes, tidies. `step` is called once a turn by the engine."""

    def __init__(
        self,
        overflow: Overflow,
        horizon_ms: int,
        to_wheel: Callable[[SourcePartition, list[Held]], None],
        executor: Executor | None = None,
    ) -> None:
        self.problem = ""
        self._overflow = overflow
        self.horizon_ms = horizon_ms
        self._step_ms = max(horizon_ms // STEPS_PER_HORIZON, 1)
        self.soon_ms = min(SOON_MS, horizon_ms // 2)
        self._to_wheel = to_wheel
        self._executor = executor or ThreadPoolExecutor(1, "overflow")
        self._jobs: deque[Job] = deque()
        self._applying = False
        self._latest = Applying({})
        self._finding = 0
        self._coming = 0  # records that promotions under way may bring
        self._loss_check = LossCheck(overflow)
        self._cursors = Cursors()
        self._refuses_writes = False
        self._now_ms = 0
        self._retry_at_ms = 0
        self._retry_ms = RETRY_FIRST_MS

    @property
    def is_awaiting(self) -> bool:
        """Redis is to answer."""
        return bool(self._jobs)

    def stop(self) -> None:
        """Give up what is queued and end the thread. Twice is harmless."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def step(self, lanes: Iterable[SourcePartition], now_ms: int, room: int) -> None:
        """Take results in, then apply what is committed and promote what the wheel has room for (`room` records).

        `lanes`: all that have work. Who has something in the overflow is known from its first step on.
        """
        room -= self._coming  # also of what is taken in now: it isn't in the wheel as `room` was reckoned
        for lane in lanes:
            self._overtake(lane, now_ms)
            self.keep_up(lane, now_ms)
        self.apply(lanes, now_ms)
        self._check(lanes)
        # Questions about ids, or about a loss, must not keep promotions waiting.
        jobs_max = JOBS_MAX + self._loss_check.under_way + self._finding
        if not self._may_retry(now_ms) or len(self._jobs) >= jobs_max:
            return
        for lane in self._cursors.behind(now_ms + self.horizon_ms - self._step_ms) if room > 0 else ():
            self._cursors.put_aside(lane)
            if lane.promotion.promised is None and lane.loss is None:
                room -= self._promote(lane, room)
                self._tidy(lane)
            if len(self._jobs) >= jobs_max or room <= 0:
                return
        for lane in lanes:
            if len(self._jobs) >= jobs_max:
                return
            if lane.promotion.promised is None and not lane.dropped and lane.loss is None:
                self._tidy(lane)

    def apply(self, lanes: Iterable[SourcePartition], now_ms: int) -> None:
        """Take results in and apply what is committed, nothing else."""
        self._now_ms = now_ms
        while self._jobs and self._jobs[0].future.done():
            self._finish(self._jobs.popleft())
        if self._may_retry(now_ms) and not self._applying:
            self._apply(lanes)

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _submit(
        self,
        lanes: list[SourcePartition],
        work: Callable[[], Any],
        done: Callable[[Any], None],
        undone: Callable[[], None],
        writes: bool,
    ) -> None:
        self._jobs.append(Job(lanes, self._executor.submit(work), done, undone, writes))

    def _finish(self, job: Job) -> None:
        try:
            result = job.future.result()
        except (OverflowUnavailable, OverflowFull) as error:
            job.undone()
            self._refuses_writes = job.refuses_writes(error)
            self._note_problem(str(error))
            return
        except OverflowLoss as error:
            job.undone()
            for lane in job.lanes:
                if lane.id == error.lane:
                    lane.note_loss(error.hw, str(error))
            return
        if not self._refuses_writes or job.writes:
            if self.problem:
                log.info("the overflow is back")
            self._forget_problem()
        job.done(result)

    def _forget_problem(self) -> None:
        self.problem = ""
        self._refuses_writes = False
        self._retry_ms = RETRY_FIRST_MS

    def _note_problem(self, problem: str) -> None:
        if not self.problem:
            log.warning("Redis does not answer: what is in memory goes on, the rest waits", extra={"problem": problem})
        self.problem = problem
        self._loss_check.hasten()
        self._retry_at_ms = self._now_ms + self._retry_ms
        self._retry_ms = min(self._retry_ms * 2, RETRY_MAX_MS)

    def _may_retry(self, now_ms: int) -> bool:
        return is_over(now_ms, self._retry_at_ms, RETRY_MAX_MS)

    # --- change blocks --------------------------------------------------------------------------------------------

    def _apply(self, lanes: Iterable[SourcePartition]) -> None:
        """Everything that the ledger has and Redis hasn't, in one job: at most one is under way."""
        ready: list[tuple[SourcePartition, ChangeBlock]] = []
        for lane in lanes:
            for change in lane.changes if lane.loss is None else ():
                if not change.ready or lane.dropped or len(ready) >= CHANGES_PER_JOB_MAX:
                    break
                ready.append((lane, change))
        if not ready:
            return
        changes = [
            Change(lane.id, change.number, list(change.records.values()), change.struck) for lane, change in ready
        ]
        now_ms = self._now_ms
        self._applying = True
        latest = self._latest = Applying({lane: change.number for lane, change in ready})

        def apply() -> None:
            self._overflow.apply(changes, now_ms)
            latest.happened = True

        def applied(_: None) -> None:
            self._applying = False
            for lane, change in ready:
                lane.changes.popleft()
                lane.overflow_used = True
                self._cursors.note(lane)
                lane.applied(change)

        def unapplied() -> None:
            self._applying = False

        involved = [lane for lane, _ in ready]
        self._submit(involved, apply, applied, unapplied, writes=True)

    # --- the cursor -----------------------------------------------------------------------------------------------

    @property
    def used(self) -> Collection[SourcePartition]:
        """Lanes that may have something in the overflow."""
        return self._cursors.lanes

    @property
    def read_until_ms(self) -> int:
        """Up to when all is read that any lane has in the overflow, at least: epoch milliseconds."""
        return self._cursors.first_ms

    def _overtake(self, lane: SourcePartition, now_ms: int) -> None:
        """Put into the wheel now what falls due before the overflow can have it."""
        if lane.puts or lane.changes:
            soon = lane.overtake(now_ms + self.soon_ms)
            if soon:
                self._to_wheel(lane, soon)

    def near_ms(self, lane: SourcePartition, now_ms: int) -> int:
        """Until when records read now go into the wheel, epoch ms."""
        self.keep_up(lane, now_ms)
        return max(now_ms + self.soon_ms, lane.promotion.reach.due_ms)

    def keep_up(self, lane: SourcePartition, now_ms: int) -> None:
        """Move the cursor of a lane that has nothing in the overflow: it stays while nobody needs it. That of another
        one is moved by promotions.
        """
        if lane.overflow_used:
            self._cursors.note(lane)
            return
        start = lane.promotion.cursor
        if lane.loss is None and start.due_ms <= now_ms + self.horizon_ms - self._step_ms:
            lane.promotion.cursor = max(start, self._until(lane, now_ms))

    def _until(self, lane: SourcePartition, now_ms: int) -> Position:
        """How far a lane's cursor may move."""
        goal = Position(now_ms + self.horizon_ms, OFFSET_MAX)
        return min(goal, just_before(lane.earliest_put()))

    def _promote(self, lane: SourcePartition, room: int) -> int:
        """Move one lane's cursor; returns how many records may come of it."""
        start, until = lane.promotion.cursor, self._until(lane, self._now_ms)
        if until <= start:
            return 0
        enough = start.due_ms - self._now_ms > self.horizon_ms // 2
        if enough and until.due_ms - start.due_ms < self._step_ms:
            return 0
        if lane.promotion.vacant > start:  # nothing is to be asked, nor passed over
            start = lane.promotion.cursor = min(until, lane.promotion.vacant)
            if lane.order is not None:
                lane.agenda.stir(lane)
            if start == until:
                return 0
        records_max = min(room, PROMOTION_RECORDS_MAX)
        lane.promotion.promised = until
        needed = self._latest.needed(lane)
        self._coming += records_max

        def promoted(result: Promotion) -> None:
            self._coming -= records_max
            if lane.loss is not None:  # found meanwhile: the rebuild knows the cursor as it is
                lane.promotion.promised = None
            elif not lane.leaving:
                passed_over = lane.promotion.passed_over
                self._to_wheel(lane, lane.promoted(start, result.records, result.cursor))
                lane.promotion.vacant = result.vacant
                if lane.promotion.passed_over and not passed_over:  # once: whoever writes there may do so each second
                    log.warning(
                        PASSED_OVER, extra={"source_partition": str(lane.id), "count": lane.promotion.passed_over}
                    )

        def unpromoted() -> None:
            self._coming -= records_max
            lane.promotion.promised = None

        self._submit(
            [lane],
            lambda: self._overflow.promote(lane.id, start, until, records_max, needed()),
            promoted,
            unpromoted,
            writes=False,
        )
        return records_max

    def ask_to_tidy(self, lanes: Iterable[SourcePartition]) -> None:
        """Clean up what is settled and bring near what comes near, a bounded step at a time. Asked by housekeeping."""
        for lane in lanes:
            lane.tidy_asked = lane.overflow_used
            lane.agenda.stir(lane)
            if lane.overflow_used and lane.ledger.committed_watermark < lane.promotion.watermark:
                lane.owe_commit()  # a lane at rest settles nothing, and its last copies would stay

    def _tidy(self, lane: SourcePartition) -> None:
        if not lane.tidy_asked:
            return
        lane.tidy_asked = False
        lane.forget_passed()
        settled, now_ms = lane.ledger.committed_watermark, self._now_ms

        def tidied(remaining: int) -> None:
            lane.tidy_asked = remaining > 0
            lane.agenda.stir(lane)

        self._submit([lane], lambda: self._overflow.tidy(lane.id, settled, now_ms), tidied, lambda: None, writes=True)

    # --- by id ----------------------------------------------------------------------------------------------------

    def find(
        self,
        lane: SourcePartition,
        ids: Sequence[str],
        found: Callable[[Mapping[str, Held]], None],
        unfound: Callable[[], None],
    ) -> bool:
        """Ask which of these ids the overflow has; False when it can't be asked just now."""
        if not self._may_retry(self._now_ms) or lane.loss is not None or lane.dropped:
            return False
        cursor, needed = lane.promotion.cursor, self._latest.needed(lane)
        self._finding += 1

        def done(answers: Mapping[str, Held]) -> None:
            self._finding -= 1
            # What is open would be known here, had it been read and put there: see `SourcePartition.promoted`.
            found({name: held for name, held in answers.items() if not lane.offsets.is_open(held.offset)})

        def undone() -> None:
            self._finding -= 1
            unfound()

        self._submit([lane], lambda: self._overflow.find(lane.id, ids, cursor, needed()), done, undone, writes=False)
        return True

    # --- loss -----------------------------------------------------------------------------------------------------

    def _check(self, lanes: Iterable[SourcePartition]) -> None:
        check, now_ms = self._loss_check, self._now_ms
        if not (self._may_retry(now_ms) and check.is_due(now_ms)):
            return
        asked = check.begin(self._cursors.lanes, now_ms)
        if self.problem and (self._refuses_writes or not asked) and not any(lane.changes for lane in lanes):
            self._forget_problem()  # with the partitions that had it: nobody waits for Redis any more
        if asked:
            self._submit([], lambda: check.ask(asked), partial(check.note, asked), check.give_up, writes=False)
