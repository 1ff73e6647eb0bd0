"""Transactions of what schedules owe, by whoever has the right to write it.

One process has that right at a time: a *tenure*. It begins by taking a transactional producer, under an id that all
replicas share, by which Kafka fences off whoever had it before; then the topic is read past everything that is in it.
With that producer nothing is written but a word to the topic of schedules. Occurrences go by other producers, several
side by side: if a partition can't be told how a transaction has ended, nobody can begin with its id, and the tenure's
must never be such a one. So every transaction asks, when all of it is acknowledged, whether the tenure lasts:

    records and progress acknowledged -> a word by the tenure's producer is committed -> this is committed
                                         or refused                                  -> this is aborted

Whoever begins a tenure after that word finds the progress in the topic, acknowledged, and waits for how it ends before
counting on anything. Whoever began before it has had the word refused. So two that think they are the one, a crash at
any point, and a process that wakes up after its time are one case.
"""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple, Protocol, TypeVar

from sidecar.kafka.topic_follower import PARTITION
from sidecar.operations.jobs.transactional_sender import (
    OutgoingRecord,
    Refused,
    ShipmentFailed,
    TakenOver,
    TargetRefused,
)
from sidecar.operations.schedules.claim import Claim
from sidecar.operations.schedules.job import Job
from sidecar.operations.schedules.owing import Limits
from sidecar.operations.schedules.schedule import Entry, Progress, SchedulesUnavailable, standing
from sidecar.operations.schedules.schedule_book import Known, claim_record
from sidecar.operations.schedules.store import progress_parcel

TENURE: Final = ""  # how the id ends that all replicas share
WORD: Final = b"/writer"  # the key of the tenure's word: no schedule has an empty name
ANSWER_S: Final = 5.0

Result = TypeVar("Result")

log = logging.getLogger("tickover.schedules")


class OccurrenceSender(Protocol):
    """A transactional producer (`TransactionalSender`)."""

    def init(self, seconds: float) -> None: ...

    def write(
        self,
        parcels: Sequence[OutgoingRecord],
        facts: Sequence[OutgoingRecord],
        confirm: Callable[[], None] | None,
        seconds: float,
    ) -> None: ...

    def close(self) -> None: ...


class Schedules(Protocol):
    """The topic of schedules (`store.ScheduleStore`)."""

    topic: str

    def alive(self) -> Mapping[str, Known]: ...

    def unread(self) -> Mapping[str, Known]: ...

    def last_claim(self) -> Claim: ...

    def is_empty(self) -> bool: ...

    def catch_up(self) -> None: ...


class Run(Protocol):
    """Work in a thread of its own (`sidecar.kafka.background.in_background`)."""

    def __call__(self, work: Callable[[], Result]) -> Future[Result]: ...


class FiringContext(NamedTuple):
    """Parts of the process that firing works with. All may be called from any thread."""

    schedules: Schedules
    limits: Limits
    pen: Callable[[str], OccurrenceSender]  # under a transactional id that ends like this
    owns: Callable[[], bool]  # whether this replica is the one, if it can read all schedules
    sources: Callable[[], Mapping[str, int]]  # partition counts of the topics that are consumed
    now_ms: Callable[[], int | None]  # never ahead of the brokers'; None: their clock wasn't seen yet
    written: Callable[[str, int, int, bool], None]  # schedule, in time, made up for, whether some were passed over
    run: Run
    keep: Callable[[Collection[str]], None]  # counts of these schedules: there are no others any more
    is_paused: Callable[[str], bool]  # whether somebody has paused the schedule of this name

    def owes_nothing(self, entry: Entry) -> bool:
        """Whether a schedule is paused, by what it says itself or by an operator."""
        return entry.schedule.paused or self.is_paused(entry.schedule.name)


class Tenure:
    """The right to write, from `begin` until somebody else begins. For any thread."""

    def __init__(self, here: FiringContext) -> None:
        self.is_over = False
        self._here = here
        self._pen = here.pen(TENURE)
        self._word = [
            OutgoingRecord(here.schedules.topic, WORD, json.dumps({"id": uuid.uuid4().hex}).encode(), [], PARTITION)
        ]
        self._asking = threading.Lock()

    def begin(self) -> None:
        """Fence off whoever came before. Raises ShipmentFailed."""
        self._pen.init(ANSWER_S * 2)

    def confirm(self) -> None:
        """Return if nobody else had begun a tenure by now. Else it is over: raises TakenOver, SchedulesUnavailable."""
        self._write(self._word)

    def say(self, claim: Claim) -> None:
        """Write what this replica says of itself. Raises as `confirm`."""
        self._write(
            [*self._word, OutgoingRecord(self._here.schedules.topic, *claim_record(claim), partition=PARTITION)]
        )

    def _write(self, facts: Sequence[OutgoingRecord]) -> None:
        with self._asking:
            if self.is_over:
                raise TakenOver
            try:
                self._pen.write([], facts, None, ANSWER_S)
            except TakenOver:
                self.is_over = True
                raise
            except (ShipmentFailed, Refused, TargetRefused) as error:
                self.is_over = True  # nobody knows, and the producer is of no use any more
                raise SchedulesUnavailable(str(error)) from None

    def close(self) -> None:
        """Nothing more is written by it. Twice is harmless."""
        self.is_over = True
        self._here.run(self._close_pen)  # somebody may be asking: a client must not be closed under a call

    def _close_pen(self) -> None:
        with self._asking:
            self._pen.close()


class Writer:
    """A producer for occurrences within a tenure, under an id that ends like this. For one thread at a time."""

    def __init__(self, here: FiringContext, tenure: Tenure, id: str) -> None:
        self._here = here
        self._tenure = tenure
        self._id = id
        self._pen: OccurrenceSender | None = None
        self.progress: dict[str, Progress] = {}  # what it has written itself; the topic lags behind

    def begin(self, seconds: float = ANSWER_S) -> None:
        """End what was left open under its id, in so many seconds, and learn how far schedules have come.

        Raises ShipmentFailed, Unfinished, and SchedulesUnavailable.
        """
        self.close()
        pen = self._here.pen(self._id)
        try:
            pen.init(seconds)
            self._here.schedules.catch_up()
        except BaseException:
            pen.close()
            raise
        self.progress.clear()
        self._pen = pen

    def standing(self, entry: Entry, known: Known) -> Progress:
        """How far a schedule has come."""
        return standing(entry, self.progress.get(entry.schedule.name, known.progress))

    def write(self, jobs: Sequence[Job], others: Mapping[str, Progress], seconds: float) -> None:
        """One transaction: jobs, and the progress of other schedules.

        Raises as `TransactionalSender.write`, with indexes of the parcels of all jobs in their order; TakenOver only
        where the tenure is over; SchedulesUnavailable.
        """
        assert self._pen is not None, "begun"
        said = {**others, **{job.name: job.progress for job in jobs}}
        facts = [progress_parcel(self._here.schedules.topic, name, progress) for name, progress in said.items()]
        parcels = [parcel for job in jobs for parcel in job.parcels]
        try:
            self._pen.write(parcels, facts, self._tenure.confirm, seconds)
        except TakenOver:
            self._tenure.confirm()
            raise ShipmentFailed("a transaction was ended from outside") from None
        self.progress |= said

    def end(self) -> None:
        """End what may be open under its id, as readers wait for that. By another producer: this one may hang."""
        pen = self._here.pen(self._id)
        try:
            pen.init(ANSWER_S)
        except ShipmentFailed as error:
            log.info("a transaction is not ended yet", extra={"id": self._id, "error": str(error)})
        finally:
            pen.close()

    def close(self) -> None:
        """Give up what is under way. Twice is harmless."""
        pen, self._pen = self._pen, None
        if pen is not None:
            pen.close()


def fresh_id() -> str:
    """How an id ends that nobody has used: no topic and no schedule has such a name."""
    return f"~{uuid.uuid4().hex}"
