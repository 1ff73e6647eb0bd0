"""Decisions remembered: records that ask for the same in the same words differ in nothing but their timestamp.

Where a decision depends on what is asked for alone, it is made once for each different wording, which is a record's
control headers as they came, names and values. The next record with these, and no other header but the user's own, is
answered from here. Where in a record they stand is guessed from the last one with as many headers (its *form*): a wrong
guess finds nothing, and the record is decided as any other. Measured: taking a record's headers apart
costs a third of what pairing names and values anew for each record did.

What is remembered is bounded in number and size, whatever is sent, and forgotten with the policy table it came from.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from sys import intern
from typing import Any, Final, NamedTuple

from policies.decide import depends_on_request_alone
from policies.headers import DELAY, TARGET, TARGET_PARTITION
from policies.table import PolicyTable
from sidecar.engine.intake.retry_cache import TopicRetries
from sidecar.model.header_codec import Split
from sidecar.model.record import Headers, Held

ANSWERS_MAX: Final = 16_384  # of one topic
NAMES_MAX: Final = 1_024  # of headers of the user's
HEADERS_MAX: Final = 32
BYTES_MAX: Final = 1_024  # of a record's control headers and the names of its others together

_REPEATABLE: Final = frozenset((DELAY, TARGET, TARGET_PARTITION))

Wording = tuple[tuple[str, bytes | None], ...]
Picker = Callable[[Headers], Sequence[tuple[str, bytes | None]]]


class Answer(NamedTuple):
    """A decision to hold, but for the due time."""

    wait_ms: int  # from the record's timestamp
    target: str
    target_partition: int
    policy: str
    dead_letter: str
    size: int  # of the control headers, names and values


class Form(NamedTuple):
    """Where the control headers of a record stand, and where the user's own."""

    controls: Picker
    user: Picker


class TopicDecisions:
    """Answers that one policy table gave to the records of one topic. Read in place by `Decider.decide_run`.

    `forms` by number of headers; `own_names`: names of headers that are the user's own, each interned, as held records
    share them; `retries`: those that failed alike.
    """

    __slots__ = ("_is_repeatable", "answers", "forms", "own_names", "retries")

    def __init__(self, topic: str, table: PolicyTable) -> None:
        self._is_repeatable = depends_on_request_alone(topic, table)
        self.forms: dict[int, Form] = {}
        self.own_names: dict[str, str] = {}
        self.answers: dict[Wording, Answer] = {}
        self.retries = TopicRetries(topic, table)

    def note(self, headers: Headers, parts: Split, timestamp_ms: int, held: Held) -> None:
        """Remember a decision for later records with the same control headers, if it may be given again."""
        user, controls = parts.user, parts.controls
        if not self._is_repeatable or not _REPEATABLE.issuperset(controls):
            return
        # Others: headers that tickover itself writes, those that only a retry has, and control headers given twice.
        if len(user) + len(controls) < len(headers) or len(headers) > HEADERS_MAX:
            return
        places = [name in controls for name, _ in headers]
        form = Form(_picker(places, True), _picker(places, False))
        wording = tuple((intern(name), value) for name, value in form.controls(headers))
        size = sum(len(name) + len(value or b"") for name, value in wording)
        if size + sum(len(name) for name, _ in user) > BYTES_MAX:
            return
        self.forms[len(headers)] = form
        if len(self.answers) >= ANSWERS_MAX:
            self.answers.clear()
        if len(self.own_names) + len(user) > NAMES_MAX:
            self.own_names.clear()
        self.own_names.update((name, name) for name, _ in user)
        wait_ms = held.due_ms - timestamp_ms
        self.answers[wording] = Answer(wait_ms, held.target, held.target_partition, held.policy, held.dead_letter, size)


def _picker(kinds: Sequence[bool], wanted: bool) -> Picker:
    """Picks the headers of one kind."""
    places = [place for place, kind in enumerate(kinds) if kind is wanted]
    if len(places) > 1 and places[-1] - places[0] >= len(places):
        return itemgetter(*places)
    between: Any = slice(places[0], places[-1] + 1) if places else slice(0)
    return itemgetter(between)


class DecisionCache:
    """Answers remembered of all topics."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, tuple[PolicyTable, TopicDecisions]] = {}

    def of(self, topic: str, table: PolicyTable) -> TopicDecisions:
        """Answers remembered of this topic under this table."""
        found = self._topics.get(topic)
        if found is None or found[0] is not table:
            found = self._topics[topic] = table, TopicDecisions(topic, table)
        return found[1]
