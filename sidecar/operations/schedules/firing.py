"""Writing what schedules owe: each occurrence as a delayed record in its schedule's source, a little ahead of its time.

From there it is a message like any other: held, emitted when due, looked up and cancelled by its id. One replica does
this, the one that has a certain source partition; `writing.py` is about how it takes over from whoever did before.
Occurrences and the progress that speaks of them are one transaction, so each occurrence is written once.

    step:  what ended apart -> all that the others owe, in as few transactions as may be -> what is tried apart

Where this replica can't read all schedules, another one that can read more takes over (`claim.py`).

Most schedules go together. Where a transaction fails, whose fault it was goes apart (`apart.py`), and the rest is
written at once. One transaction may take a quarter of the look-ahead, so that the rest is on time. What is large goes
apart from the beginning.

`Firing.step` is housekeeping's, once a second. It needs no better timing: the wheel has that.
"""

import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sidecar.model.ports import is_over
from sidecar.operations.jobs.transactional_sender import (
    NoTransactions,
    Refused,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
    Unanswered,
)
from sidecar.operations.schedules.apart import AGAIN_MS, ROOM, SLOW_KEPT_MS, Apart, Names, blame, key_of_name
from sidecar.operations.schedules.claim import claim_of, is_writer
from sidecar.operations.schedules.job import Job, before, job_of, place_of
from sidecar.operations.schedules.schedule import Entry, Progress, SchedulesUnavailable
from sidecar.operations.schedules.writing import FiringContext, Tenure, Writer, fresh_id

RECORDS_MAX: Final = 1_000  # of one transaction, beside those of the last schedule in it
BYTES_MAX: Final = 4 << 20
ROUNDS_MAX: Final = 100  # transactions in one step
FAILURES_MAX: Final = 3  # of them
TRIES_MAX: Final = 4  # apart, at a time
BRIEFLY_S: Final = 2.0  # for the end of what was left open, where another id is as good
TOGETHER: Final = "together"  # how the transactional id of most transactions ends
PATIENCE: Final = 0.25  # of the look-ahead
PATIENCE_MAX_S: Final = 5.0
STOP_S: Final = 5.0
WITHOUT_MS: Final = 60_000  # brokers that have no transactions are asked again after so long
_NEVER_MS: Final = 1 << 62

log = logging.getLogger("tickover.schedules")


class Gathered(NamedTuple):
    """Jobs to be written next, and progress to be told of other schedules."""

    jobs: list[Job]
    others: dict[str, Progress]  # of schedules with which something is wrong, or right again


class Firing:
    """For one thread at a time. `step` raises what a step can't go on after; the next one begins anew."""

    def __init__(self, here: FiringContext) -> None:
        self._here = here
        self._patience_s = min(here.limits.ahead_ms / 1_000 * PATIENCE, PATIENCE_MAX_S)
        self._tenure: Tenure | None = None
        self._writer: Writer | None = None
        self._is_doubtful = False  # the last transaction failed, and nobody knows whose fault that was
        self._apart: dict[str, Apart] = {}  # by key
        self._next: dict[str, tuple[int, int, int]] = {}  # by name: version, since, and the next occurrence
        self._stepping = threading.Lock()
        self._without_until_ms = 0  # until then the brokers have no transactions
        self._me = uuid.uuid4().hex
        self._unread: dict[str, int] = {}  # with their versions, as last said in the log

    @property
    def is_owner(self) -> bool:
        """Whether this process writes what schedules owe."""
        return self._tenure is not None

    def stop(self) -> None:
        """Let go, when the transactions under way have ended. Twice is harmless."""
        in_time = self._stepping.acquire(timeout=STOP_S)
        trying = list(self._apart.values())
        try:
            self._let_go()
        finally:
            if in_time:
                self._stepping.release()
        for apart in trying:
            apart.wait(STOP_S / len(trying))

    def step(self) -> None:
        """Write all that is owed now."""
        with self._stepping:
            try:
                self._step()
            finally:
                self._forget_deleted()

    def _forget_deleted(self) -> None:
        alive = self._here.schedules.alive()
        self._here.keep(alive.keys())
        self._next = {name: known for name, known in self._next.items() if name in alive}

    def _let_go(self) -> None:
        self._end_tenure()
        self._apart.clear()

    def _end_tenure(self) -> None:
        tenure, writer, self._tenure, self._writer = self._tenure, self._writer, None, None
        if writer is not None:
            writer.close()
        if tenure is not None:
            tenure.close()

    def _step(self) -> None:
        self._tell_unread()
        is_first, now_ms = self._here.owns(), self._here.now_ms()
        if not self._is_writer(is_first, now_ms):
            self._let_go()
            return
        if now_ms is None:
            return  # this machine's clock may be hours ahead: a progress would silence its schedule until then
        if self._here.schedules.is_empty():
            self._let_go()  # two clients of Kafka that nobody needs; with the first schedule they are made again
            return
        if not is_over(now_ms, self._without_until_ms, WITHOUT_MS):
            return
        try:
            if self._tenure is None or self._tenure.is_over:
                self._begin()
                if not self._is_writer(is_first, now_ms):  # all that is in the topic has been read only now
                    self._let_go()
                    return
            self._claim(is_first, now_ms)
            self._collect()
            self._write_all()
            self._try_apart()
        except TakenOver:
            log.info("another replica writes what schedules owe, or has done so")
            self._end_tenure()
        except NoTransactions:
            self._without_until_ms = now_ms + WITHOUT_MS
            self._end_tenure()
            raise
        except (ShipmentFailed, SchedulesUnavailable):
            self._end_tenure()
            raise

    def _tell_unread(self) -> None:
        found = self._here.schedules.unread()
        versions = {name: known.version for name, known in found.items()}
        for name, known in found.items():
            if known.unread is not None and self._unread.get(name) != known.version:
                about = {"schedule": name, "version": known.version, "problem": known.unread.problem}
                log.warning("a schedule can't be read here, and is written by a replica that can read it", extra=about)
        self._unread = versions

    def _is_writer(self, is_first: bool, now_ms: int | None) -> bool:
        schedules = self._here.schedules
        if now_ms is None:
            return is_first
        return is_writer(self._me, is_first, schedules.unread(), schedules.last_claim(), now_ms)

    def _claim(self, is_first: bool, now_ms: int) -> None:
        """Say what others have to know of this writer, if anything. Raises as `Tenure.confirm`."""
        schedules = self._here.schedules
        claim = claim_of(self._me, is_first, schedules.unread(), schedules.last_claim(), now_ms)
        if claim is not None and self._tenure is not None:
            self._tenure.say(claim)

    def _begin(self) -> None:
        self._end_tenure()
        self._tenure = Tenure(self._here)
        self._tenure.begin()
        self._take_writer()
        for apart in self._apart.values():
            apart.begin_anew()
        log.info("this replica writes what schedules owe")

    def _take_writer(self, is_stuck: bool = False) -> None:
        """A new producer: under the id of most transactions, unless a partition keeps that from use."""
        assert self._tenure is not None, "begun"
        former, self._writer = self._writer, None
        if former is not None:
            former.close()
            if is_stuck:
                self._here.run(former.end)
        usual, other = (Writer(self._here, self._tenure, id) for id in (TOGETHER, fresh_id()))
        if not is_stuck and self._can_begin(usual):
            self._writer = usual
            return
        other.begin()
        self._writer = other

    def _can_begin(self, writer: Writer) -> bool:
        try:
            writer.begin(BRIEFLY_S)
        except ShipmentFailed as error:
            log.warning("another transactional id is used", extra={"error": str(error)})
            return False
        return True

    def _now(self) -> tuple[Writer, int]:
        writer, now_ms = self._writer, self._here.now_ms()
        assert writer is not None, "begun"
        assert now_ms is not None, "once it is known, time stays known"
        return writer, now_ms

    # --- together -------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        failures = 0
        for _ in range(ROUNDS_MAX):
            writer, now_ms = self._now()
            jobs, others = self._gather(writer, now_ms)
            if not jobs and not others:
                return
            try:
                writer.write(jobs, others, self._patience_s)
            except (Unanswered, Refused, TargetRefused) as error:
                self._accuse(jobs, len(others), error)
                # Always another producer: one that aborted after a refusal may be out of sequence with its broker.
                self._take_writer(is_stuck=isinstance(error, Unanswered))
                failures += 1
                if failures == FAILURES_MAX:
                    return
            except ShipmentFailed:
                if self._is_doubtful:
                    for job in jobs:
                        self._set_apart(job.entry.source, job)
                self._is_doubtful = True
                raise
            else:
                self._is_doubtful = False
                self._tell(jobs)

    def _gather(self, writer: Writer, now_ms: int) -> Gathered:
        """The next batch. What is to go apart is set apart."""
        sources = self._here.sources()
        apart = {name: one for one in self._apart.values() for name in one.names}
        found = Gathered([], {})
        records = size = 0
        for name, known in self._here.schedules.alive().items():
            entry, alone = known.entry, apart.get(name)
            if entry is None or self._here.owes_nothing(entry) or records >= RECORDS_MAX or size >= BYTES_MAX:
                continue
            if alone is not None and (alone.is_trying or not alone.is_known):
                continue
            if alone is not None and alone.names[name] != entry.version:  # it may have been what was wrong
                del alone.names[name]
                alone = None
            progress = writer.standing(entry, known)
            wanted = _set_right(progress, alone, _hindrance(entry, sources), now_ms)
            if alone is None and not wanted.problem and (job := self._job(entry, wanted, now_ms, sources)) is not None:
                if (together := self._together(job, progress.problem)) is not None:
                    found.jobs.append(together)
                    records, size = records + max(len(together.parcels), 1), size + together.size
                continue
            if alone is None and not wanted.problem:
                wanted = wanted._replace(waiting_ms=0)  # nothing is owed
            if wanted != progress:
                found.others[name] = wanted
        return found

    def _job(self, entry: Entry, progress: Progress, now_ms: int, sources: Mapping[str, int]) -> Job | None:
        if not self._owes(entry, progress, now_ms):
            return None
        return job_of(entry, progress, now_ms, self._here.limits, sources)

    def _owes(self, entry: Entry, progress: Progress, now_ms: int) -> bool:
        """The first occurrence behind a progress is remembered, since most schedules wait for theirs for long."""
        name, schedule, since_ms = entry.schedule.name, entry.schedule, progress.last_ms
        version, since, next_ms = self._next.get(name, (0, 0, 0))
        if (version, since) != (entry.version, since_ms):
            next_ms = next(schedule.occurrences(since_ms), _NEVER_MS)
            self._next[name] = entry.version, since_ms, next_ms
        return next_ms <= now_ms + self._here.limits.ahead_ms

    def _together(self, job: Job, problem: str) -> Job | None:
        """As much of it as goes with others; None: it goes apart. `problem`: what was wrong with it when last seen."""
        first, key = before(job, self._apart)
        if job.entry.source in self._apart:  # before all else: no other key writes what is for this source
            key = job.entry.source
        elif problem not in ("", _gone(job.entry.source)) and job.parcels:
            key = place_of(job.parcels[0])  # as whoever came before had it, or a former version
        elif first is None:
            pass  # it begins with what is for such a partition
        elif job.size > ROOM.size or len(job.parcels) > ROOM.records:
            key = key_of_name(job.name)
        else:
            return first
        self._set_apart(key, job)
        return None

    def _tell(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            owed = job.owed
            self._here.written(job.name, len(owed.due) - owed.made_up, owed.made_up, owed.dropped)
            if owed.dropped:
                log.warning("missed occurrences of a schedule are passed over", extra={"schedule": job.name})

    # --- apart ----------------------------------------------------------------------------------------------------

    def _accuse(self, jobs: Sequence[Job], others: int, error: Exception) -> None:
        """Set apart whose fault it was that a transaction failed. Raises ShipmentFailed where nobody knows."""
        sent = sum(len(job.parcels) for job in jobs) + len(jobs) + others
        if isinstance(error, Unanswered) and len(error.indexes) == sent and not self._is_doubtful:
            self._is_doubtful = True  # nothing at all is acknowledged: it may be the id, whose last end isn't complete
            return
        guilty = blame(jobs, error)
        if not guilty:
            raise ShipmentFailed(str(error))
        for key, names in guilty.items():
            log.warning("schedules go apart from all others", extra={"apart": key, "error": str(error)})
            self._enter(key, names, jobs[0].now_ms)

    def _set_apart(self, key: str, job: Job) -> None:
        self._enter(key, {job.name: job.entry.version}, job.now_ms)

    def _enter(self, key: str, names: Names, since_ms: int) -> None:
        """From now on they go by this key, and by no other."""
        for apart in self._apart.values():
            for name in names:
                apart.names.pop(name, None)
        self._apart.setdefault(key, Apart(key, since_ms)).names.update(names)

    def _collect(self) -> None:
        """Take in what was written apart since the last step, and by whom it is written next."""
        writer, now_ms = self._now()
        for key, apart in list(self._apart.items()):
            outcome = apart.take(now_ms)
            if outcome is None:
                continue
            writer.progress |= outcome.progress
            self._tell(outcome.written)
            for other, names in outcome.moved.items():
                self._enter(other, names, apart.since_ms)
            if outcome.is_complete and outcome.slowest_s > self._patience_s / 2:
                apart.kept_until_ms = now_ms + SLOW_KEPT_MS
            elif outcome.is_complete or not apart.names:
                self._bring_back(key)

    def _try_apart(self) -> None:
        """Try the keys that have waited longest, some at a time."""
        (writer, now_ms), tenure = self._now(), self._tenure
        assert tenure is not None, "begun"
        free = TRIES_MAX - sum(apart.is_trying for apart in self._apart.values())
        closed = frozenset(self._apart)
        for apart in sorted(self._apart.values(), key=lambda apart: apart.again_ms):
            if apart.is_trying or not is_over(now_ms, apart.again_ms, AGAIN_MS) or not free:
                continue
            if self._is_owing(apart, writer, now_ms) or not apart.is_known:
                apart.start(self._here, tenure, closed)
                free -= 1
            elif is_over(now_ms, apart.kept_until_ms, SLOW_KEPT_MS):
                self._bring_back(apart.key)

    def _is_owing(self, apart: Apart, writer: Writer, now_ms: int) -> bool:
        alive, sources = self._here.schedules.alive(), self._here.sources()
        for name in apart.names.keys() & alive.keys():
            known, entry = alive[name], alive[name].entry
            if entry is None or self._here.owes_nothing(entry) or entry.source not in sources:
                continue
            if self._owes(entry, writer.standing(entry, known), now_ms):
                return True
        return False

    def _bring_back(self, key: str) -> None:
        del self._apart[key]
        log.info("schedules go with all others again", extra={"apart": key})


def _hindrance(entry: Entry, sources: Mapping[str, int]) -> str:
    """Why nothing can be written; empty: nothing is in the way."""
    return "" if entry.source in sources else _gone(entry.source)


def _gone(source: str) -> str:
    return f"the source topic {source} does not exist, or no policy and no setting lets it be consumed"


def _set_right(progress: Progress, apart: Apart | None, hindrance: str, now_ms: int) -> Progress:
    """Progress of a schedule, with what is wrong now, and since when it waits."""
    if apart is None:
        waiting_ms = progress.waiting_ms or (now_ms if hindrance else 0)
        return progress._replace(problem=hindrance, waiting_ms=waiting_ms)
    if apart.again_ms and not apart.problem:  # it was tried, and is well
        return progress
    problem = apart.problem or progress.problem  # one that wasn't tried yet keeps what was wrong
    return progress._replace(problem=problem, waiting_ms=progress.waiting_ms or apart.since_ms)
