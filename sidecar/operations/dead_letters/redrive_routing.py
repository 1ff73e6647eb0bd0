"""Fate of each letter of a plan: sent where and with which headers, or passed over why. Pure; planning and sending ask
the same.

Where a letter goes is what its headers, its topic and the policies say:

    quarantined                     back to its source, with all its headers: it is decided anew
    dead, its policy is known       to the policy's target, where no header of the record can have said otherwise;
                                    without `dead_letter` the dead-letter topic's own name tells the target
    its policy is not known         by the names that topics have by default: `T-retry` and `T-dlq` are of `T`. So it is
                                    with letters that another program has written, without any header of tickover
    anything else                   nobody knows: an explicit target is needed

A dead letter doesn't carry its target, so what neither a policy nor a name says is not guessed: a message in the wrong
topic is worse than one that waits for a word.

A redrive is a new delivery: attempt and first failure are gone, so that attempts and time are counted anew; so are the
words of the last failure, because a consumer that fails again adds its own, and a repeated header is a bad one. What
stays is where the record was first met (`tickover-origin`), its id, and all that is the user's. A letter that goes back
to its source undecided (quarantine) keeps its control headers: they say what was asked for.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from policies.decision import DEAD_REASONS, LOOP, TARGET_NOT_ALLOWED, UNKNOWN_TARGET
from policies.fields import is_topic
from policies.glob import is_exact
from policies.headers import GONE_ANEW, GONE_UNDECIDED, REDRIVE_COUNT, REDRIVE_PLAN, REDRIVE_SOURCE, SOURCE
from policies.model import Policy, Removed, Versioned
from policies.table import DEAD_LETTER_SUFFIX, RETRY_SUFFIX
from sidecar.model.record import Headers, Place
from sidecar.model.reserved_topics import NOT_A_SOURCE
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.edit import NotEditable
from sidecar.operations.dead_letters.redrive_plan import TARGETS_MAX, Action, Redrive

# Why a letter is passed over, beside the reasons of `policies.decision`. What is not in the filter isn't counted.
NO_TARGET: Final = "no_target"
LOOP_CAP: Final = "redriven_too_often"
NO_VALUE: Final = "no_value"
UNREADABLE: Final = "unreadable"
REDRIVEN: Final = "redriven"  # some plan has sent it
TOO_MANY_TARGETS: Final = "too_many_targets"
DISCARDED: Final = "discarded"  # some plan has discarded it
NOT_EDITABLE: Final = "not_editable"  # its value is no JSON object that the plan's patch fits exactly
DELETED: Final = "deleted"  # it was counted, and retention took it before it could be sent

CACHED_MAX: Final = 1_024
Versions = Callable[[str], Sequence[Versioned | Removed]]


def redriven_headers(letter: DeadLetter, to_its_source: bool, leg: str) -> Headers:
    """`leg` is `plan id/number`."""
    gone = GONE_UNDECIDED if to_its_source else GONE_ANEW
    return [
        *(header for header in letter.headers or () if header[0] not in gone),
        (REDRIVE_PLAN, leg.encode()),
        (REDRIVE_COUNT, b"%d" % (letter.redrives + 1)),
        (REDRIVE_SOURCE, str(letter.place).encode()),
    ]


def is_quarantined(letter: DeadLetter) -> bool:
    """Whether it was set aside undecided, with all its headers, and not given up."""
    return bool(letter.reason) and letter.reason not in DEAD_REASONS


def destination(letter: DeadLetter, versions: Versions) -> str | None:
    """The topic it goes to; None: it needs to be said."""
    if letter.headers is None:  # it may be a quarantined one
        return None
    source = Place.of_text(letter.text(SOURCE))
    if is_quarantined(letter):
        return source.topic if source else None
    policy = _policy_of(letter, versions)
    target = _by_names(letter, source.topic if source else "") if policy is None else _by_policy(letter, policy)
    return target if target is not None and is_topic(target) else None


def _policy_of(letter: DeadLetter, versions: Versions) -> Policy | None:
    """The version that gave the letter up."""
    name, _, number = letter.policy.partition("@")
    for version in versions(name) if name else ():
        if isinstance(version, Versioned) and str(version.version) == number:
            return version.policy
    return None


def _by_policy(letter: DeadLetter, policy: Policy) -> str | None:
    if policy.retry is not None and policy.dead_letter is None:
        named = letter.place.topic.endswith(DEAD_LETTER_SUFFIX)
        return letter.place.topic.removesuffix(DEAD_LETTER_SUFFIX) if named else None
    source = Place.of_text(letter.text(SOURCE))
    default = policy.target.topic
    if default is None and policy.retry is not None and source and source.topic.endswith(RETRY_SUFFIX):
        default = source.topic.removesuffix(RETRY_SUFFIX)
    possible = {*policy.target.allow, *([default] if default else [])}
    [target] = possible if len(possible) == 1 else [""]
    return target if target and is_exact(target) else None


def _by_names(letter: DeadLetter, source: str) -> str | None:
    if source.endswith(RETRY_SUFFIX):
        return source.removesuffix(RETRY_SUFFIX)
    letters = letter.place.topic
    if letters.endswith(DEAD_LETTER_SUFFIX) and letters != source + DEAD_LETTER_SUFFIX:  # not of a delay topic
        return letters.removesuffix(DEAD_LETTER_SUFFIX)
    return None


class RoutedLetter(NamedTuple):
    """A letter on its way; without a target it is discarded."""

    letter: DeadLetter
    target: str
    headers: Headers
    partition: int = -1  # by key, and any without one

    @property
    def key(self) -> bytes | None:
        return self.letter.key

    @property
    def value(self) -> bytes | None:
        return self.letter.value


class Ways(NamedTuple):
    """Where letters may go: into no `reserved` topic, and back only into `sources`, those of the group."""

    reserved: Container[str]
    sources: Container[str]


class Sorting:
    """The rules of one plan.

    `partitions` are those of all topics as they were when this was made. Whoever can write dead letters writes their
    headers, and these must not lead elsewhere than `ways` allow. The targets of a plan's earlier attempts, which its
    progress names, count as this one's do.
    """

    def __init__(
        self,
        redrive: Redrive,
        versions: Versions,
        partitions: Mapping[str, int],
        ways: Ways,
        loops_max: int,
    ) -> None:
        self._plan = redrive.plan
        self._versions = versions
        self._partitions = partitions
        self._ways = ways
        self._loops_max = loops_max
        self._targets: dict[tuple[str, str, bool], str | None] = {}
        self._seen = {*redrive.progress.planned.targets, *redrive.progress.tally.targets}

    def fate(self, letter: DeadLetter, leg: str) -> RoutedLetter | str:
        """The letter as it is sent or discarded, or why it is passed over."""
        if self._plan.action is Action.DISCARD:
            return RoutedLetter(letter, "", [])
        if self._plan.edit is not None and letter.headers is not None:
            try:
                letter = self._plan.edit.applied(letter, self._plan.author)
            except NotEditable:
                return NOT_EDITABLE
        target, why_not = self.target(letter)
        return why_not or self.parcel(letter, target, leg)

    def gone(self, targets: Iterable[str]) -> list[str]:
        """Planned targets that are no more, sorted."""
        return sorted(target for target in targets if target not in self._partitions)

    def target(self, letter: DeadLetter) -> tuple[str, str]:
        """(target, "") or ("", why not)."""
        if letter.headers is None:
            return "", UNREADABLE
        if letter.redrives >= self._loops_max:
            return "", LOOP_CAP
        if letter.is_by_reference:
            return "", NO_VALUE
        target = self._plan.target or self._destination(letter)
        if target is None:
            return "", NO_TARGET
        if target == self._plan.topic:
            return "", LOOP
        if target in self._ways.reserved:
            return "", TARGET_NOT_ALLOWED
        if target not in self._partitions:
            return "", UNKNOWN_TARGET
        if self._goes_back(letter, target) and target not in self._ways.sources:
            return "", NOT_A_SOURCE
        if target not in self._seen:
            if len(self._seen) >= TARGETS_MAX:
                return "", TOO_MANY_TARGETS
            self._seen.add(target)
        return target, ""

    def parcel(self, letter: DeadLetter, target: str, leg: str) -> RoutedLetter:
        """The letter as it is sent."""
        source = Place.of_text(letter.text(SOURCE))
        if source is None or not self._goes_back(letter, target):
            return RoutedLetter(letter, target, redriven_headers(letter, to_its_source=False, leg=leg))
        # Without a key only the partition that it came from has the records of its id.
        stays = letter.key is None and source.partition < self._partitions.get(target, 0)
        headers = redriven_headers(letter, to_its_source=True, leg=leg)
        return RoutedLetter(letter, target, headers, source.partition if stays else -1)

    @staticmethod
    def _goes_back(letter: DeadLetter, target: str) -> bool:
        """Whether it is decided anew in its source, rather than delivered."""
        source = Place.of_text(letter.text(SOURCE)) if is_quarantined(letter) else None
        return source is not None and source.topic == target

    def _destination(self, letter: DeadLetter) -> str | None:
        source = letter.text(SOURCE).partition("/")[0]
        key = (letter.policy, source, is_quarantined(letter))
        if key not in self._targets:
            if len(self._targets) >= CACHED_MAX:
                self._targets.clear()
            self._targets[key] = destination(letter, self._versions)
        return self._targets[key]
