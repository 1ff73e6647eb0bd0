"""A redrive: what is to be sent again (the plan, which never changes) and how far it has come (the progress).

Each canary and each run is a *leg* with a number, which goes into the lineage of what it sends. Both records are
JSON in the topic of redrives; the progress is written in the transaction that sends the letters it speaks of.

Redrives that may mean the same letters send one after the other: each knows what was sent before it began, and two that
send at the same moment would both send a letter. Nobody but the log of redrives orders those of many processes, so they
take *turns*, numbers as in a bakery (Lamport): who begins says so with turn 0, looks at all that the log has, writes
a turn above those of its rivals, looks once more, and waits for each rival that has a lower turn or chooses still. Of
two that choose at the same moment at least one sees the other's turn. A turn is of the progress: who goes on with the
redrive of a dead process has it, too.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from sidecar.model.record import Place
from sidecar.model.times import with_times
from sidecar.operations.dead_letters.dead_letter import TEXT_LENGTH_MAX, DeadLetter, Selection, Word
from sidecar.operations.dead_letters.edit import Edit
from sidecar.operations.dead_letters.masking import MASK, Search, masking_of
from sidecar.operations.jobs.job import MODEL, OF_PAYLOAD, Job, PlanHead, ProgressHead, State, form_of, summed

SCHEMA: Final = 2
# Of a plan that says no more than programs of before understand. They pass over newer ones: to them a plan to discard
# would be one to send.
PLAIN_SCHEMA: Final = 1
SAMPLE_MAX: Final = 10
TARGETS_MAX: Final = 200  # of different targets in one plan
CHOOSING: Final = 0  # in place of a turn
SENDING: Final = (State.CANARY, State.RUNNING)  # what a progress says until nothing more is sent


class Action(StrEnum):
    """Fate of the letters of a plan."""

    SEND = "send"
    DISCARD = "discard"  # settled by a person: nothing is sent


class Governor(BaseModel):
    """How carefully letters are sent."""

    model_config = MODEL
    rate: Annotated[int, Field(ge=0, le=1_000_000)]  # letters a second at most; 0: no limit
    ramp_ms: Annotated[int, Field(ge=0)]  # from a tenth of the rate to all of it
    stop_share: Annotated[float, Field(ge=0, le=1)]  # of what was sent, failed again: more stops the redrive
    watch_ms: Annotated[int, Field(ge=0)]  # after its last letter a leg waits so long for what fails again


AT_ONCE: Final = Governor(rate=0, ramp_ms=0, stop_share=1, watch_ms=0)  # where nothing is sent


class Span(BaseModel):
    """Letters of one partition: from `start` to before `end`."""

    model_config = MODEL
    partition: int
    start: int
    end: int


LongWord = Annotated[str, Field(min_length=1, max_length=TEXT_LENGTH_MAX)]
OF_SEARCH: Final = frozenset(Search._fields)


class SearchedSelection(Selection):
    """Letters that fit everything given, the words of a search among it. `since` and `until` (excluded) are epoch
    milliseconds of the letter.
    """

    model_config = ConfigDict(title="SearchedLetterSelection")
    error: Word | None = Field(
        default=None,
        description="A part of the error's class, its message or the quarantine's detail, in any case, as the list of "
        "letters shows them",
    )
    id: LongWord | None = None
    key_prefix: LongWord | None = Field(default=None, description="Of keys that aren't masked")
    header: Annotated[LongWord, Field(pattern=r"(?s)^[^=]+=")] | None = Field(
        default=None, description="`name=value` of a header that isn't masked"
    )

    @model_serializer(mode="wrap")
    def _as_before(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Older versions refuse a plan with words of a search, if only as null, as they couldn't tell its letters."""
        fields: dict[str, Any] = plain(self)
        return {name: value for name, value in fields.items() if value is not None or name not in OF_SEARCH}

    @property
    def search(self) -> Search:
        return Search(**{name: getattr(self, name) or "" for name in OF_SEARCH})

    def shown(self) -> dict[str, Any]:
        """Selection for an answer: that letters are chosen by key or header, and not by which."""
        told = self.model_dump(exclude_none=True)
        return told | {name: MASK for name in OF_PAYLOAD if name in told}

    def recorded(self) -> dict[str, Any]:
        """Selection for an audit record, which stays when letters are gone: no words of what they say are in it."""
        return self.shown() | ({} if self.error is None else {"error": MASK})

    def may_share(self, other: Selection) -> bool:
        """Whether a letter may fit both; False: none can. Any two errors may stand in one message, and any two headers
        in one letter.
        """
        if not super().may_share(other):
            return False
        mine, others = self.search, other.search if isinstance(other, SearchedSelection) else Search()
        if mine.id and others.id and mine.id != others.id:
            return False
        return mine.key_prefix.startswith(others.key_prefix) or others.key_prefix.startswith(mine.key_prefix)


class Plan(PlanHead):
    """A plan to send letters again, or to discard them. `spans` pin the ends: what comes later is not meant. Nor are
    these offsets of another topic of this name: `topic_id` is Kafka's; "" where the cluster has none, and in plans of
    older versions. `letters`, offsets by partition: no others are meant. `mask`: the rules by which its search was
    counted; whatever process sends its letters finds the same.
    """

    schema_version: int = PLAIN_SCHEMA
    topic: str
    topic_id: str = ""
    selection: SearchedSelection
    mask: tuple[str, ...] = ()
    target: str | None
    spans: tuple[Span, ...]
    governor: Governor
    again: bool = False  # also letters that some plan has sent
    action: Action = Action.SEND
    letters: Mapping[int, tuple[int, ...]] = Field(default_factory=dict)  # empty: all that fit
    edit: Edit | None = None

    @property
    def reads(self) -> tuple[Span, ...]:
        """Spans in which its letters are."""
        if not self.letters:
            return self.spans
        found = ((span, self.letters.get(span.partition, ())) for span in self.spans)
        return tuple(Span(partition=one.partition, start=min(at), end=max(at) + 1) for one, at in found if at)

    def means(self, letter: DeadLetter) -> bool:
        """Whether it is one of its letters."""
        place = letter.place
        if self.letters and place.offset not in self.letters.get(place.partition, ()):
            return False
        fits, search = self.selection.fits(letter), self.selection.search
        return fits and masking_of(self.mask).finds(letter, search, with_addresses=False)

    def may_share(self, other: "Plan") -> bool:
        """Whether a letter may be meant by both; False: none can."""
        if self.topic != other.topic or not self.selection.may_share(other.selection):
            return False
        if not self.letters or not other.letters:
            return True
        return any(set(at) & set(other.letters.get(partition, ())) for partition, at in self.letters.items())


class Tally(BaseModel):
    """Letters by where they went, or why they didn't; and how many were discarded."""

    model_config = MODEL
    targets: dict[str, int] = {}
    skipped: dict[str, int] = {}
    discarded: int = 0

    @property
    def sent(self) -> int:
        return sum(self.targets.values())

    @property
    def settled(self) -> int:
        """Letters that were sent or discarded."""
        return self.sent + self.discarded

    @property
    def all(self) -> int:
        """Letters that fit, whatever became of them."""
        return self.settled + sum(self.skipped.values())

    def plus(self, other: "Tally") -> "Tally":
        """Sum of this tally and another."""
        targets, skipped = summed(self.targets, other.targets), summed(self.skipped, other.skipped)
        return Tally(targets=targets, skipped=skipped, discarded=self.discarded + other.discarded)


class Progress(ProgressHead):
    """How far a redrive has come."""

    schema_version: int = PLAIN_SCHEMA
    leg: int = 0
    left: int = 0  # letters that the canary may still send
    turn: int = 0  # of the leg: when it may send (0: it chooses)
    positions: dict[int, int] = Field(default_factory=dict)  # by partition: the next letter to be looked at
    watched: dict[int, int] = Field(
        default_factory=dict
    )  # by partition: the next record behind the span to be looked at
    planned: Tally = Tally()
    scanned: dict[int, int] = Field(default_factory=dict)  # while planning, as `positions`
    sample: tuple[str, ...] = ()
    tally: Tally = Tally()
    leg_sent: int = 0
    failed_again: int = 0
    leg_failed_again: int = 0


class Redrive(Job[Plan, Progress]):
    """A plan with its progress, and who asked for its end."""

    progress: Progress = Progress()

    def document(self) -> dict[str, Any]:
        """As REST shows it."""
        plan, progress = self.plan, self.progress
        ends = sum(span.end - span.start for span in plan.reads)
        places = progress.scanned if progress.state is State.PLANNING else progress.positions
        left = sum(max(span.end - max(places.get(span.partition, 0), span.start), 0) for span in plan.reads)
        return {
            **self.document_head(),
            "action": plan.action,
            "topic": plan.topic,
            "letters": [str(Place(plan.topic, p, offset)) for p, at in sorted(plan.letters.items()) for offset in at],
            "edit": None if plan.edit is None else plan.edit.document(),
            "filter": with_times(plan.selection.shown(), "since", "until"),
            "target": plan.target,
            "again": plan.again,
            **self.document_owner(),
            "limits": plan.governor.model_dump(),
            "planned": {
                "letters": progress.planned.settled,
                "targets": progress.planned.targets,
                "skipped": progress.planned.skipped,
                "sample": progress.sample,
            },
            "leg": progress.leg,
            "sent": progress.tally.sent,
            "discarded": progress.tally.discarded,
            "targets": progress.tally.targets,
            "skipped": progress.tally.skipped,
            "failed_again": progress.failed_again,
            "records": {"read": ends - left, "remaining": left},
        }


FORM: Final = form_of(Plan, Progress, Redrive, SCHEMA)


def rivals(mine: Redrive, others: Iterable[Redrive]) -> Iterator[Redrive]:
    """Other redrives that send letters now, and may mean one that `mine` means, too."""
    plan = mine.plan
    for one in others:
        if one.plan.id != plan.id and one.progress.state in SENDING and plan.may_share(one.plan):
            yield one


def turn_after(mine: Redrive, others: Iterable[Redrive]) -> int:
    """The turn that `mine` takes."""
    return 1 + max((one.progress.turn for one in rivals(mine, others)), default=CHOOSING)


def first_of(mine: Redrive, others: Iterable[Redrive]) -> str | None:
    """The plan of a rival that is to be waited for; None: it's the turn of `mine`."""
    before = ((one.progress.turn, one.plan.id) for one in rivals(mine, others))
    return min((place for place in before if place < (mine.progress.turn, mine.plan.id)), default=(CHOOSING, None))[1]
