"""One attempt at the work of a redrive: read, sort, send, watch, until the leg has ended or something fails.

Letters and the progress that speaks of them are one transaction. So whatever is in memory here may be thrown away at
any time: the next attempt begins at the progress.
"""

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

from confluent_kafka import TopicPartition

from policies.decision import TOO_LARGE
from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import reader_settings
from sidecar.kafka.topic_follower import ANSWER_S, position_after
from sidecar.model.record import Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter, letter_of
from sidecar.operations.dead_letters.dead_letter_log import (
    LettersGone,
    check_letters,
    check_topic,
    shorter,
)
from sidecar.operations.dead_letters.redrive_context import RedriveContext
from sidecar.operations.dead_letters.redrive_plan import (
    CHOOSING,
    SAMPLE_MAX,
    Action,
    Plan,
    Progress,
    Redrive,
    Tally,
    first_of,
    turn_after,
)
from sidecar.operations.dead_letters.redrive_routing import (
    DELETED,
    DISCARDED,
    REDRIVEN,
    RoutedLetter,
    Sorting,
)
from sidecar.operations.dead_letters.redriven_log import PlanMarks
from sidecar.operations.dead_letters.returns import Returns
from sidecar.operations.jobs.job import State
from sidecar.operations.jobs.pace import Pace, must_stop
from sidecar.operations.jobs.transactional_sender import (
    Refused,
    Sendable,
    TakenOver,
    TargetRefused,
    TransactionalSender,
)

BATCH_MAX: Final = 2_000
CAUTIOUS_MAX: Final = 50  # letters in a transaction, while those that Kafka refuses are looked for
READ_WAIT_S: Final = 0.1
HEARTBEAT_S: Final = 3.0
PAUSE_S: Final = 0.02  # while the pace allows nothing


class RedriveRun:
    """One attempt: what is in memory between two crashes."""

    def __init__(self, redrive: Redrive, shipping: TransactionalSender, here: RedriveContext) -> None:
        self.shipping = shipping
        self._here = here
        self._plan: Plan = redrive.plan
        self._progress: Progress = redrive.progress
        self._written = redrive.progress  # as it stands in the log, if nobody else has written since
        self._may_start = redrive.state.may_start
        partitions = here.partitions()
        self._sorting = Sorting(redrive, here.versions, partitions, here.ways(partitions), here.loops_max)
        self._waiting: deque[DeadLetter] = deque()
        self._pen: PlanMarks  # of this attempt, once it begins to read
        self._suspects = 0  # of the waiting ones: Kafka has refused some of them
        self._too_large: set[Place] = set()
        self._starts = {span.partition: span.start for span in redrive.plan.reads}
        self._ends = {span.partition: span.end for span in redrive.plan.reads}
        places = self._progress.scanned if self._is_planning else self._progress.positions
        self._read = {span.partition: max(places.get(span.partition, 0), span.start) for span in redrive.plan.reads}
        self._consumer = Consumer(reader_settings(here.client, f"{here.group}.redrive"))
        self._returns = Returns(here.client, here.group, redrive.plan, self._progress)
        self._written_s = here.monotonic_s()

    @property
    def _is_planning(self) -> bool:
        return self._progress.state is State.PLANNING

    def begin(self, state: State, canary: int) -> None:
        """A new leg, if the redrive is still where it was when it was asked for."""
        if not self._may_start:
            raise TakenOver
        fresh = {"state": state, "left": canary, "leg": self._progress.leg + 1, "turn": CHOOSING, "reason": ""}
        self._write([], (), **fresh, leg_sent=0, leg_failed_again=0)

    def close(self) -> None:
        self._consumer.close()
        self._returns.close()

    # --- the loop -------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Until the end."""
        if not self._progress.state.is_active or self._is_ended():
            return
        if not self._is_planning and not self._has_its_turn():
            return
        try:
            with closing(self._here.open_log()) as log:
                check_letters(log, self._plan, self._here.topic_id)
            self._take_turns()
        except LettersGone as gone:
            may_return = not gone.for_good and not self._is_planning  # half a count is none
            self._write([], state=State.STOPPED if may_return else State.ABORTED, reason=str(gone))

    def _take_turns(self) -> None:
        plan, discards = self._plan, self._plan.action is Action.DISCARD
        self._pen = self._here.redriven.pen(plan.id, plan.topic, plan.topic_id, discards)
        if not self._is_planning and (gone := self._sorting.gone(self._progress.planned.targets)):
            self._write([], state=State.STOPPED, reason=f"target gone: {', '.join(gone)}")
            return
        self._consumer.assign(
            [TopicPartition(self._plan.topic, p, at) for p, at in self._read.items() if self._open(p)]
        )
        governor, clock = self._plan.governor, self._here.monotonic_s
        pace = Pace(0 if self._is_planning else governor.rate, governor.ramp_ms / 1_000, clock())
        last_sent_s = clock()
        while self._may_go_on():
            if self._is_ended() or self._has_failed_too_often():
                return
            quota = pace.allowed(clock(), self._quota())
            if quota:
                self._fetch(quota)
            elif self._quota():
                self._here.wait(PAUSE_S)
            count = self._turn(quota)
            if count:
                pace.sent(count)
                last_sent_s = clock()
            elif self._is_all_sent() and self._is_over(clock() - last_sent_s):
                return
            if clock() - self._written_s > HEARTBEAT_S:
                self._write([])

    def _has_its_turn(self) -> bool:
        """Wait until nobody else may send what this one means. False: it ends before that."""
        log = self._here.log
        if self._progress.turn == CHOOSING:
            self._write([], turn=turn_after(self._redrive, log.all().values()))
            log.catch_up()
        while (rival := first_of(self._redrive, log.all().values())) is not None:
            reason = f"waits for the redrive {rival}, which sends letters of this topic"
            if reason != self._progress.reason or self._here.monotonic_s() - self._written_s > HEARTBEAT_S:
                self._write([], reason=reason)
            if self._here.wait(READ_WAIT_S) or self._is_ended():
                return False
        self._progress = self._progress.model_copy(update={"reason": ""})
        return True

    @property
    def _redrive(self) -> Redrive:
        return Redrive(plan=self._plan, progress=self._progress)

    def _is_ended(self) -> bool:
        """Whether somebody has asked for its end: then the progress says so."""
        redrive = self._here.log.get(self._plan.id)
        if redrive is None or redrive.aborted_by is None:
            return False
        self._write([], state=State.ABORTED)
        return True

    def _may_go_on(self) -> bool:
        return self._progress.state.is_active and not self._here.wait(0)

    def _quota(self) -> int:
        """How many letters may still be sent in this turn, but for the pace."""
        most = CAUTIOUS_MAX if self._suspects else BATCH_MAX
        return min(most, self._progress.left) if self._progress.state is State.CANARY else most

    def _open(self, partition: int) -> bool:
        return self._read[partition] < self._ends[partition]

    def _is_all_sent(self) -> bool:
        canary_sent = self._progress.state is State.CANARY and self._progress.left == 0
        return canary_sent or (not self._waiting and not any(map(self._open, self._read)))

    def _is_over(self, quiet_s: float) -> bool:
        """The end of a leg: all is sent, and long enough nothing more has failed again."""
        if self._is_planning:
            ended = self._pen.stale(self._lows())
            check_topic(self._plan, self._here.topic_id)  # all that was counted, and that ends, is of this one
            self._write([], ended, state=State.PLANNED, positions={})
            return True
        if self._progress.leg_sent and quiet_s * 1_000 < self._plan.governor.watch_ms:
            self._here.wait(READ_WAIT_S)
            return False
        if self._waiting or any(map(self._open, self._read)):
            self._write([], state=State.CANARIED)
            return True
        progress = self._progress  # each letter that was counted was looked at again, or is there no more
        deleted = max(progress.planned.all - progress.tally.all, 0)
        tally = progress.tally.plus(Tally(skipped={DELETED: deleted} if deleted else {}))
        self._write([], self._pen.records([], self._here.log.now_ms()), state=State.DONE, tally=tally)
        return True

    def _lows(self) -> dict[int, int]:
        """The first offset that is there, by partition."""
        places = [TopicPartition(self._plan.topic, partition) for partition in self._ends]
        bounds = self._consumer.log_bounds(places, ANSWER_S)
        return {partition: low for (_, partition), (low, _) in bounds.items()}

    def _has_failed_too_often(self) -> bool:
        if self._is_planning:
            return False
        found = self._returns.look(self._progress.leg)
        if found.all:
            self._progress = self._progress.model_copy(
                update={
                    "failed_again": self._progress.failed_again + found.all,
                    "leg_failed_again": self._progress.leg_failed_again + found.of_leg,
                }
            )
        progress = self._progress
        is_canary = progress.state is State.CANARY
        share = self._plan.governor.stop_share
        if not must_stop(progress.leg_sent, progress.leg_failed_again, share, is_canary):
            return False
        reason = f"{progress.leg_failed_again} of {progress.leg_sent} failed again"
        self._write([], state=State.STOPPED, reason=reason)
        return True

    # --- one batch ------------------------------------------------------------------------------------------------

    def _fetch(self, quota: int) -> None:
        """Read on, unless enough is waiting."""
        if len(self._waiting) >= quota or not any(map(self._open, self._read)):
            return
        messages = self._consumer.consume(quota, READ_WAIT_S)
        if not self._is_planning and any(message.error() is None for message in messages):
            # Asked after they were read: so they are of the topic that the answer names.
            check_topic(self._plan, self._here.topic_id)
        for message in messages:
            position, partition, offset = position_after(message), message.partition() or 0, message.offset() or 0
            if position is None:
                continue
            if offset < self._read[partition]:
                raise shorter(self._plan, partition)
            if message.error() is None and offset < self._ends[partition]:
                self._waiting.append(letter_of(message))
            self._read[partition] = position
        done = [TopicPartition(self._plan.topic, p) for p in self._read if not self._open(p)]
        self._consumer.pause(done)

    def _turn(self, quota: int) -> int:
        """Send up to `quota` of the letters that wait; how many were."""
        parcels: list[RoutedLetter] = []
        skipped: Counter[str] = Counter()
        positions = dict(self._progress.scanned if self._is_planning else self._progress.positions)
        leg = f"{self._plan.id}/{self._progress.leg}"
        looked: list[DeadLetter] = []
        until_s = self._here.monotonic_s() + HEARTBEAT_S  # to search 2,000 long messages takes longer
        while self._waiting and len(parcels) < quota and len(looked) < BATCH_MAX and self._here.monotonic_s() < until_s:
            letter = self._waiting.popleft()
            looked.append(letter)
            self._advance(positions, letter.place.partition, letter.place.offset)
            positions[letter.place.partition] = letter.place.offset + 1
            if not self._plan.means(letter):
                continue
            if not self._plan.again and (sent := self._pen.sent(letter.place)):
                skipped[DISCARDED if sent.discarded else REDRIVEN] += 1
                continue
            fate = self._sorting.fate(letter, leg)
            if isinstance(fate, str) or letter.place in self._too_large:
                skipped[fate if isinstance(fate, str) else TOO_LARGE] += 1
            else:
                parcels.append(fate)
        if not self._waiting:  # all that was read was looked at, and gaps have no letters
            for partition, at in self._read.items():
                self._advance(positions, partition, min(at, self._ends[partition]))
        if self._is_planning:
            self._count(parcels, skipped, positions)
            return 0
        if parcels:
            return self._send(parcels, looked, skipped, positions)
        tally = self._progress.tally.plus(Tally(skipped=dict(skipped)))
        self._progress = self._progress.model_copy(update={"positions": positions, "tally": tally})
        return 0

    def _advance(self, positions: dict[int, int], partition: int, place: int) -> None:
        """No letter lies between the last one and `place`."""
        if not self._is_planning:
            self._pen.note_gap(partition, positions.get(partition, self._starts[partition]), place)
        positions[partition] = place

    def _count(self, parcels: list[RoutedLetter], skipped: Counter[str], positions: dict[int, int]) -> None:
        room = SAMPLE_MAX - len(self._progress.sample)
        sample = (*self._progress.sample, *(str(parcel.letter.place) for parcel in parcels[:room]))
        planned = self._progress.planned.plus(self._counted(parcels, skipped))
        update = {"planned": planned, "sample": sample, "scanned": positions}
        self._progress = self._progress.model_copy(update=update)

    def _counted(self, parcels: list[RoutedLetter], skipped: Counter[str]) -> Tally:
        if self._plan.action is Action.DISCARD:
            return Tally(discarded=len(parcels), skipped=dict(skipped))
        return Tally(targets=Counter(parcel.target for parcel in parcels), skipped=dict(skipped))

    def _send(
        self, parcels: list[RoutedLetter], looked: list[DeadLetter], skipped: Counter[str], positions: dict[int, int]
    ) -> int:
        """One transaction; how many letters were sent. If Kafka refuses some, nothing was: all wait again, and go few
        at a time, each record in a batch of its own, until the guilty are known.
        """
        going = [parcel for parcel in parcels if parcel.target]
        try:
            marks = self._pen.records([parcel.letter.place for parcel in parcels], self._here.log.now_ms())
            self._write(going, marks, **self._sent_update(parcels, skipped, positions))
        except Refused as refused:
            self._waiting.extendleft(reversed(looked))
            if self.shipping.alone:
                self._too_large.update(parcels[index].letter.place for index in refused.codes)
            else:
                self._suspects = len(looked)
            # Always a new one: a client that aborted after a refusal may be out of sequence with its broker.
            self._replace_shipping(alone=True)
            return 0
        except TargetRefused as error:
            self._replace_shipping(alone=False)
            self._write([], state=State.STOPPED, reason=f"a target refuses: {error}")
            return 0
        self._pen.written()
        self._returns.expect(going)
        if self.shipping.alone:
            self._suspects = max(self._suspects - len(looked), 0)
            if not self._suspects:
                self._replace_shipping(alone=False)
                self._too_large.clear()
        return len(parcels)

    def _sent_update(
        self, going: list[RoutedLetter], skipped: Counter[str], positions: dict[int, int]
    ) -> dict[str, Any]:
        left = self._progress.left - len(going) if self._progress.state is State.CANARY else 0
        return {
            "positions": positions,
            "tally": self._progress.tally.plus(self._counted(going, skipped)),
            "leg_sent": self._progress.leg_sent + len(going),
            "left": left,
        }

    def _replace_shipping(self, alone: bool) -> None:
        """Another producer. It fences off whoever has taken the redrive over meanwhile, so that is looked at before
        anything is sent: what another one has sent is not in this one's progress. Raises TakenOver.
        """
        self.shipping.close()
        here = self._here
        transactional_id = f"tickover.{here.group}.redrive.{self._plan.id}"
        self.shipping = TransactionalSender(here.client, transactional_id, here.log.topic, alone)
        self.shipping.init()
        here.log.catch_up()
        now = here.log.get(self._plan.id)
        if now is None or now.progress != self._written:
            raise TakenOver

    def _write(self, parcels: list[RoutedLetter], marks: Sequence[Sendable] = (), **update: Any) -> None:
        """A fact when it returns."""
        always = {"owner": self._here.owner, "updated_ms": self._here.log.now_ms(), "watched": self._returns.positions}
        progress = self._progress.model_copy(update={**always, **update})
        self.shipping.ship(self._plan.id, parcels, progress, marks)
        self._progress = self._written = progress
        self._written_s = self._here.monotonic_s()
