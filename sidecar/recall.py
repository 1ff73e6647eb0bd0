"""Decisions remembered: records that ask for the same in the same words differ in nothing but their timestamp.

Most records of a topic have the same few header names in the same order (a *shape*). A shape knows which headers are
the user's and which ask for something, so that neither has to be found out for every record; and where a decision
depends on what is asked for alone, it is made once for each different wording. Measured: reading, deciding and holding
a record then costs half the time.

What is remembered is bounded in number and size, whatever is sent, and forgotten with the policy table it came from.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter
from sys import intern
from typing import Any, Final, NamedTuple

from policies.table import PolicyTable, depends_on_request_alone
from sidecar.codec import CONTROL, Split, kind_of
from sidecar.record import DELAY, NO_HEADERS, TARGET, TARGET_PARTITION, Headers, Held

SHAPES_MAX: Final = 256
ANSWERS_MAX: Final = 16_384  # of one shape
HEADERS_MAX: Final = 32
NAME_CHARACTERS_MAX: Final = 1_024  # of all header names of a shape together
VALUE_BYTES_MAX: Final = 512  # of all control headers together

_REPEATABLE: Final = frozenset((DELAY, TARGET, TARGET_PARTITION))
_new_tuple: Final = tuple.__new__

Names = tuple[str, ...]
Values = tuple[bytes | None, ...]


class Answer(NamedTuple):
    """A decision to hold, but for the due time."""

    wait_ms: int  # from the record's timestamp
    target: str
    target_partition: int
    policy: str
    dead_letter: str


class Shape:
    """How records with these header names are taken apart, and what was answered to them."""

    __slots__ = ("_control_names", "answers", "is_repeatable", "name_size", "pick_controls", "pick_user", "user_names")

    def __init__(self, names: Names, user: Sequence[int], controls: Sequence[int], is_repeatable: bool) -> None:
        self.user_names = tuple(intern(names[place]) for place in user)
        self._control_names = tuple(intern(names[place]) for place in controls)
        self.name_size = sum(map(len, names))
        self.pick_user = _picker(user)
        self.pick_controls = _picker(controls)
        self.is_repeatable = is_repeatable and _REPEATABLE.issuperset(self._control_names)
        self.answers: dict[Values, Answer] = {}

    def split(self, values: Values) -> Split:
        """What `codec.split` gives."""
        user: Headers = list(zip(self.user_names, self.pick_user(values), strict=True))
        controls = dict(zip(self._control_names, self.pick_controls(values), strict=True))
        size = self.name_size + sum(len(value) for value in values if value)
        return _new_tuple(Split, (user, controls, NO_HEADERS, NO_HEADERS, None, size))

    def remember(self, asked: Values, timestamp_ms: int, held: Held) -> None:
        """Answer the next record that asks for this in the same way."""
        if not self.is_repeatable or sum(len(value) for value in asked if value) > VALUE_BYTES_MAX:
            return
        if len(self.answers) >= ANSWERS_MAX:
            self.answers.clear()
        wait_ms = held.due_ms - timestamp_ms
        self.answers[asked] = Answer(wait_ms, held.target, held.target_partition, held.policy, held.dead_letter)


def _picker(places: Sequence[int]) -> Callable[[Values], Values]:
    """Picks the values at these places, always as a tuple."""
    if len(places) > 1 and places[-1] - places[0] >= len(places):
        return itemgetter(*places)
    between: Any = slice(places[0], places[-1] + 1) if places else slice(0)
    return itemgetter(between)


class Shapes:
    """The shapes of one topic under one policy table, by header names.

    None stands for header names that `codec.split` must see to: those that tickover itself writes, those that only a
    retry has, and control headers given twice.
    """

    __slots__ = ("_is_repeatable", "known")

    def __init__(self, topic: str, table: PolicyTable) -> None:
        self._is_repeatable = depends_on_request_alone(topic, table)
        self.known: dict[Names, Shape | None] = {}

    def learn(self, names: Names) -> Shape | None:
        """The shape of records with these header names."""
        if len(names) > HEADERS_MAX or sum(map(len, names)) > NAME_CHARACTERS_MAX:
            return None
        if len(self.known) >= SHAPES_MAX:
            self.known.clear()
        kinds = [kind_of(name) for name in names]
        user = [place for place, kind in enumerate(kinds) if kind is None]
        controls = [place for place, kind in enumerate(kinds) if kind == CONTROL]
        regular = len(user) + len(controls) == len(names) and len({names[place] for place in controls}) == len(controls)
        shape = self.known[names] = Shape(names, user, controls, self._is_repeatable) if regular else None
        return shape


class Recall:
    """The shapes of all topics."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, tuple[PolicyTable, Shapes]] = {}

    def shapes(self, topic: str, table: PolicyTable) -> Shapes:
        """What is remembered of this topic under this table."""
        found = self._topics.get(topic)
        if found is None or found[0] is not table:
            found = self._topics[topic] = table, Shapes(topic, table)
        return found[1]
