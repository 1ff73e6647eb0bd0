"""Redrives: plans of several operators to send or discard the same dead letters, run by processes that die and are
taken over.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, TopicPartition

from policies.headers import ID
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.model.record import Headers, Place
from sidecar.model.redrive_marks import block_of
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.redrive_context import RedriveContext
from sidecar.operations.dead_letters.redrive_plan import Action, Governor, Redrive, SearchedSelection
from sidecar.operations.dead_letters.redrive_routing import Ways
from sidecar.operations.dead_letters.redrive_run import RedriveRun
from sidecar.operations.dead_letters.redrives import Redrives, Topics, Wanted
from sidecar.operations.dead_letters.returns import Found
from sidecar.operations.jobs.job import State
from sidecar.operations.jobs.runner import JobRefused
from sidecar.operations.jobs.transactional_sender import Refused, ShipmentFailed, TakenOver
from tests.unit.letter_world import MemoryRedriven, Record, dead
from tests.unit.redrive_world import MemoryPlans

TOPIC: Final = "orders-dlq"
TARGET: Final = "orders"
PARTITIONS: Final = 2
LETTERS: Final = 25
PLANS: Final = 4
TRIES_MAX: Final = 400
DEPTH_MAX: Final = 3  # processes that are in the middle of something at the same moment
CRASHES_MAX: Final = 10
POISON: Final = b"poison"  # as a key: the target refuses it
NO_LIMIT: Final = Governor(rate=0, ramp_ms=0, stop_share=1, watch_ms=0)
NOW_MS: Final = 1_800_000_000_000


class CrashError(Exception):
    """The process dies here."""


class Message(NamedTuple):
    """A consumed letter, or the end of its partition."""

    place: Place
    letter: DeadLetter | None

    def error(self) -> Any:
        return None if self.letter else SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def leader_epoch(self) -> int | None:
        return None

    def offset(self) -> int:
        return self.place.offset

    def key(self) -> bytes | None:
        return self.letter.key if self.letter else None

    def value(self) -> bytes | None:
        return self.letter.value if self.letter else None

    def headers(self) -> Headers:
        return (self.letter.headers if self.letter else None) or []

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, self.letter.timestamp_ms if self.letter else 0


class Letters:
    """The dead-letter topic: made anew, it has another id, and its offsets begin at 0. As `LetterLog` and more."""

    def __init__(self) -> None:
        self.generation = 0
        self.partitions: dict[int, list[DeadLetter | None]] = {}
        self.taken: set[bytes] = set()  # by retention
        self.of_id: dict[str, dict[int, list[DeadLetter | None]]] = {}  # also what is no more
        self.low: Counter[int] = Counter()
        self.make_anew()

    @property
    def id(self) -> str:
        return f"id {self.generation}"

    def make_anew(self) -> None:
        self.generation += 1
        self.partitions = self.of_id[self.id] = {partition: [] for partition in range(PARTITIONS)}
        self.low.clear()

    def add(self, partition: int, reason: str, key: bytes) -> None:
        """Add a letter whose value says which one it is, whatever topic it was in."""
        letters = self.partitions[partition]
        place = Place(TOPIC, partition, len(letters))
        value = f"{self.generation}/{partition}/{len(letters)}".encode()
        headers = dead(reason, id=f"{len(letters) % 4}", error_message=f"card {len(letters) % 3} was declined")
        letters.append(DeadLetter(place, NOW_MS + len(letters), key, value, headers))

    def add_gap(self, partition: int) -> None:
        self.partitions[partition].append(None)

    def there(self) -> Iterator[DeadLetter]:
        for partition, letters in self.partitions.items():
            yield from (letter for letter in letters[self.low[partition] :] if letter is not None)

    def topics(self) -> dict[str, int]:
        return {TOPIC: PARTITIONS, TARGET: 3}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self.low[partition], len(self.partitions[partition])

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int | None:
        return next((one.place.offset for one in self.there() if one.timestamp_ms >= time_ms), None)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[DeadLetter]]:
        yield [one for one in self.there() if one.place.partition == partition and start <= one.place.offset < end]

    def close(self) -> None:
        """Nothing is open."""


class Reader:
    """A consumer of the letters, without a group."""

    def __init__(self, operators: "Operators") -> None:
        self._operators = operators
        self._at: dict[int, int] = {}
        self._ended: set[int] = set()
        self._paused: set[int] = set()

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._at = {place.partition: place.offset for place in places}

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self._paused.update(place.partition for place in places)

    def consume(self, count: int, seconds: float) -> list[Message]:
        self._operators.meanwhile("consume")
        letters, found = self._operators.letters, list[Message]()
        for partition in [partition for partition in self._at if partition not in self._paused]:
            low, end = letters.bounds(TOPIC, partition)
            at = self._at[partition]
            if not low <= at <= end:
                at = low  # out of range: from the beginning
            most = min(end, at + self._operators.rng.randint(1, count), at + 5)
            for offset in range(at, most):
                if (letter := letters.partitions[partition][offset]) is not None:
                    found.append(Message(letter.place, letter))
            self._at[partition] = most
            if most == end and partition not in self._ended:
                self._ended.add(partition)
                found.append(Message(Place(TOPIC, partition, end), None))
            elif most < end:
                self._ended.discard(partition)
        return found

    def log_bounds(self, places: Sequence[TopicPartition], _: float) -> dict[tuple[str, int], tuple[int, int]]:
        return {(at.topic, at.partition): self._operators.letters.bounds(TOPIC, at.partition) for at in places}

    def close(self) -> None:
        """Nothing is open."""


class NoReturns:
    """Nothing fails again."""

    positions: Mapping[int, int] = {}

    def look(self, leg: int) -> Found:
        return Found(0, 0)

    def expect(self, parcels: Sequence[Any]) -> None:
        """Called with the parcels that were sent."""

    def close(self) -> None:
        """Nothing is open."""


class Pen:
    """A transactional producer: whoever has taken its id last may write."""

    def __init__(self, operators: "Operators", id: str, alone: bool) -> None:
        self._operators = operators
        self._id = id
        self.alone = alone
        self._epoch = -1

    def init(self, seconds: float = 0.0) -> None:
        self._epoch = self._operators.epochs[self._id] = self._operators.epochs[self._id] + 1

    def ship(self, plan_id: str, parcels: Sequence[Any], progress: Any, marks: Sequence[Any] = ()) -> None:
        operators = self._operators
        operators.meanwhile("ship")
        if self._epoch != operators.epochs[self._id]:
            operators.seen["fenced"] += 1
            raise TakenOver
        if operators.rng.random() < 0.03:
            operators.seen["aborted transactions"] += 1
            raise ShipmentFailed("aborted")
        if refused := {index: KafkaError.MSG_SIZE_TOO_LARGE for index, one in enumerate(parcels) if one.key == POISON}:
            raise Refused(refused)
        operators.write(plan_id, parcels, progress, marks)
        if operators.rng.random() < 0.03:
            operators.seen["lost answers"] += 1
            raise ShipmentFailed("no answer")
        operators.meanwhile("shipped")

    def close(self) -> None:
        self._epoch = -1


class Plans(MemoryPlans):
    """The topic of redrives."""

    topic = "tickover.g.redrives"


class Operators:
    """One run. `seen` counts what happened. `patches`: what stands in for clients of Kafka in `redrive_run`."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.letters, self.plans = Letters(), Plans()
        self.redriven = MemoryRedriven({TOPIC: self.letters.id})
        self.seen: Counter[str] = Counter()
        self.epochs: Counter[str] = Counter()
        self.settled: list[tuple[str, bytes]] = []  # sent or discarded: by which plan, and which letter
        self.unsure: Counter[str] = Counter()  # by plan: letters that were discarded, or taken before that
        self.patches = {
            "Consumer": lambda settings: Reader(self),
            "Returns": lambda *_: NoReturns(),
            "TransactionalSender": lambda client, id, topic, alone=False: Pen(self, id, alone),
        }
        topics = Topics(lambda log, topic: None, lambda log: frozenset({TOPIC}), frozenset(), lambda _: self.letters.id)
        self.redrives = Redrives(self.plans, lambda: self.letters, topics, None, "here")  # type: ignore[arg-type]
        self.redrives.crew.plan = self.plans.write_plan  # type: ignore[method-assign] # nobody counts in a thread
        self._depth = 0
        self._crashes_left = self.rng.randint(0, CRASHES_MAX)
        self._time_s = 0.0
        self._is_quiet = False
        for _ in range(LETTERS):
            self._add()

    def run(self) -> None:
        """All of it, and the verdict."""
        for _ in range(PLANS):
            self._plan()
            for plan_id in list(self.plans.redrives):
                if self.rng.random() < 0.7:
                    self._go_on(plan_id)
        self._is_quiet = True
        for plan_id in list(self.plans.redrives):
            for _ in range(TRIES_MAX):
                if not self._is_open(plan_id):
                    break
                self._go_on(plan_id)
            assert not self._is_open(plan_id), f"{plan_id} never ends: {self._of(plan_id).progress}"
            self.seen[self._of(plan_id).state.value] += 1
        self._judge()

    # --- what operators do ----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        rng = self.rng
        selection = SearchedSelection(
            reason=rng.choice((None, "attempts_exhausted", "timeout")),
            error=rng.choice((None, None, None, "CARD 1", "declined")),
            id=rng.choice((None, None, None, "2")),
        )
        action, named = rng.choice((Action.SEND, Action.SEND, Action.DISCARD)), dict[int, tuple[int, ...]]()
        if rng.random() < 0.2:
            some = rng.sample(list(self.letters.there()), 3)
            named = {p: tuple(one.place.offset for one in some if one.place.partition == p) for p in range(PARTITIONS)}
            self.seen["letters named"] += 1
        target = TARGET if action is Action.SEND else None
        again = rng.random() < 0.2
        wanted = Wanted(TOPIC, selection, target, NO_LIMIT, True, "me", again, action, named)
        with suppress(JobRefused):
            self.redrives.plan(wanted)

    def _of(self, plan_id: str) -> Redrive:
        return self.plans.redrives[plan_id]

    def _is_open(self, plan_id: str) -> bool:
        redrive = self._of(plan_id)
        starts = redrive.state is State.PLANNED and redrive.progress.planned.settled > 0
        return redrive.state.is_active or starts or redrive.state in (State.CANARIED, State.STOPPED)

    def _go_on(self, plan_id: str) -> None:
        """A process takes it over, or begins its next leg."""
        redrive, state, canary = self._of(plan_id), None, 0
        if not redrive.state.is_active:
            if not self._is_open(plan_id):
                return
            canary = self.rng.choice((0, 0, 3))
            state = State.CANARY if canary else State.RUNNING
        self._depth += 1
        try:
            self._attempt(redrive, state, canary)
        except (TakenOver, ShipmentFailed, LettersUnavailable, LogUnavailable, CrashError) as error:
            self.seen[type(error).__name__] += 1
        finally:
            self._depth -= 1

    def _attempt(self, redrive: Redrive, state: State | None, canary: int) -> None:
        shipping: Any = Pen(self, f"tickover.g.redrive.{redrive.plan.id}", alone=False)
        shipping.init()
        asked, before = self._of(redrive.plan.id).aborted_by is not None, len(self.settled)
        work = RedriveRun(self._of(redrive.plan.id), shipping, self._here())
        try:
            if state is not None:
                work.begin(state, canary)
            work.go_on()
        finally:
            work.close()
        mine = [value for by, value in self.settled[before:] if by == redrive.plan.id]
        assert not (asked and mine), f"{redrive.plan.id} sends {mine} after it was to be aborted"

    def _here(self) -> RedriveContext:
        return RedriveContext(
            client={}, log=self.plans, redriven=self.redriven, versions=lambda _: (), partitions=self.letters.topics,  # type: ignore[arg-type]
            open_log=lambda: self.letters, topic_id=lambda _: self.letters.id, owner="here", group="g",
            ways=lambda topics: Ways(frozenset(), frozenset(topics)), loops_max=3, monotonic_s=self._clock,
            wait=self._wait,
        )  # fmt: skip

    def write(self, plan_id: str, parcels: Sequence[Any], progress: Any, marks: Sequence[Any]) -> None:
        """A committed transaction."""
        before = self._of(plan_id)
        ended = before.progress.state in (State.DONE, State.ABORTED)
        assert not (ended and parcels), f"{plan_id} sends though it is {before.progress.state}"
        marked = self._marked(before)
        for mark in marks:
            self.redriven.take(Record(self.redriven.end, mark.key, mark.value))
            self.redriven.end += 1
        going = {one.value or b"": one for place, one in self._marked(before).items() if place not in marked}
        assert not (ended and going), f"{plan_id} marks though it is {before.progress.state}"
        if before.plan.action is Action.SEND:
            sent = {one.letter.value for one in parcels}
            assert going.keys() - self.letters.taken <= sent <= going.keys(), "marked is what is sent, and gaps"
        else:  # of what retention has taken nobody knows whether it was discarded, or a gap by then
            assert not parcels, f"{plan_id} sends what is to be discarded"
            sent = going.keys() - self.letters.taken
            self.unsure[plan_id] += len(going) - len(sent)
        for value in sent:
            self._check(before, going[value])
            self.settled.append((plan_id, value))
        self.seen[before.plan.action.value] += len(sent)
        read = type(progress).model_validate_json(progress.model_dump_json())
        self.plans.redrives[plan_id] = before.model_copy(update={"progress": read})

    def _marked(self, redrive: Redrive) -> dict[Place, DeadLetter]:
        """Letters that this plan has marked."""
        plan, found = redrive.plan, dict[Place, DeadLetter]()
        for partition, letters in self.letters.of_id[plan.topic_id].items():
            kept = self.redriven.kept(block_of(plan.topic_id, Place(TOPIC, partition, 0)), plan.id)
            assert kept is None or kept.discarded == (plan.action is Action.DISCARD), plan.id
            there = [letter for letter in letters if letter is not None]
            found |= {one.place: one for one in there if kept is not None and kept.bits >> one.place.offset & 1}
        return found

    def _check(self, redrive: Redrive, letter: DeadLetter) -> None:
        plan, value = redrive.plan, letter.value or b""
        generation, partition, offset = map(int, value.split(b"/"))
        assert plan.topic_id == f"id {generation}", f"{value!r} is of another topic than {plan.topic_id}"
        assert any(one.partition == partition and one.start <= offset < one.end for one in plan.spans), value
        assert plan.selection.fits(letter), value
        wanted = plan.selection
        assert wanted.id in (None, letter.text(ID)), value
        assert wanted.error is None or wanted.error.lower() in letter.message, value
        assert not plan.letters or offset in plan.letters[partition], f"{value!r} is not named by {plan.letters}"
        others = [by for by, one in self.settled if one == value]
        assert plan.id not in others, f"{plan.id} sends or discards {value!r} twice"
        assert plan.again or not others, f"{plan.id} sends or discards {value!r}, as {others} did"

    # --- what happens meanwhile -----------------------------------------------------------------------------------

    def _clock(self) -> float:
        self._time_s += self.rng.choice((0, 0, 0, 1.0))
        return self._time_s

    def _wait(self, seconds: float) -> bool:
        self._time_s += max(seconds, 0.001)
        if seconds and self._depth > 1:
            return True  # it is asked to stop: who holds it up is in the middle of something
        self.meanwhile("wait")
        return False

    def meanwhile(self, point: str) -> None:
        """At each call to the outside: others act, other processes work, and this one may die."""
        rng = self.rng
        if self._depth and rng.random() < 0.1 and self._depth < DEPTH_MAX:
            others = [plan_id for plan_id in self.plans.redrives if self._is_open(plan_id)]
            if others:
                self.seen["another process at work"] += 1
                self._go_on(rng.choice(others))
        if self._is_quiet:
            return
        if rng.random() < 0.1:
            rng.choice((self._add, self._add, self._add, self._forget, self._abort, self._make_anew))()
        if self._crashes_left and rng.random() < 0.03:
            self._crashes_left -= 1
            raise CrashError(point)

    def _add(self) -> None:
        partition, rng = self.rng.randrange(PARTITIONS), self.rng
        if rng.random() < 0.15:
            self.letters.add_gap(partition)
        key = POISON if rng.random() < 0.1 else b"k"
        self.letters.add(partition, rng.choice(("attempts_exhausted", "timeout")), key)

    def _forget(self) -> None:
        """Retention takes the first ones."""
        partition = self.rng.randrange(PARTITIONS)
        low, end = self.letters.bounds(TOPIC, partition)
        self.letters.low[partition] = now = self.rng.randint(low, min(low + 3, end))
        self.letters.taken |= {one.value or b"" for one in self.letters.partitions[partition][low:now] if one}
        self.seen["retention"] += 1

    def _abort(self) -> None:
        running = [plan_id for plan_id, redrive in self.plans.redrives.items() if redrive.state.is_active]
        if running and self.rng.random() < 0.3:
            self.plans.write_abort(self.rng.choice(running), "somebody")
            self.seen["asked to abort"] += 1

    def _make_anew(self) -> None:
        if self.rng.random() < 0.2:
            self.letters.make_anew()
            self.redriven.ids[TOPIC] = self.letters.id
            for _ in range(LETTERS):
                self._add()
            self.seen["the topic made anew"] += 1

    # --- the verdict ----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        sent = {value for _, value in self.settled}
        for letter in self.letters.there():
            marked = self.redriven.find(self.letters.id, letter.place) is not None
            assert marked == (letter.value in sent), f"{letter.value!r}: marked {marked}"
        for plan_id, redrive in self.plans.redrives.items():
            progress = redrive.progress
            mine = [value for by, value in self.settled if by == plan_id]
            more = progress.tally.settled - len(mine)
            assert 0 <= more <= self.unsure[plan_id], f"{plan_id} has settled {len(mine)}, and says {progress.tally}"
            if redrive.state is State.DONE:
                assert progress.tally.all >= progress.planned.all, (
                    f"told of nowhere: {progress.planned} {progress.tally}"
                )
                self._check_complete(redrive, sent)

    def _check_complete(self, redrive: Redrive, sent: set[bytes]) -> None:
        """Each letter that is still there was sent or discarded, by this redrive or another one, or can't be sent."""
        plan = redrive.plan
        if plan.topic_id != self.letters.id:
            return
        spans = {span.partition: span for span in plan.spans}
        for letter in self.letters.there():
            span = spans[letter.place.partition]
            can_be = letter.key != POISON or plan.action is Action.DISCARD
            if span.start <= letter.place.offset < span.end and plan.means(letter) and can_be:
                assert letter.value in sent, f"{plan.id} is done, and {letter.value!r} was passed over"
