"""Fate of each letter of a plan: sent where, or passed over why. Pure; planning and sending ask the same."""

from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from policies.headers import SOURCE
from sidecar.model.record import Headers
from sidecar.model.reserved_topics import NOT_A_SOURCE
from sidecar.operations.dead_letters.dead_letter import DeadLetter, place_of
from sidecar.operations.dead_letters.destination import BY_REFERENCE, Versions, destination, is_quarantined
from sidecar.operations.dead_letters.lineage import redriven_headers
from sidecar.operations.dead_letters.redrive_plan import TARGETS_MAX, Redrive

# Why a letter is passed over. What is not in the filter isn't counted.
NO_TARGET: Final = "no_target"
NO_TOPIC: Final = "unknown_target"
LOOP: Final = "loop"
NOT_ALLOWED: Final = "target_not_allowed"
LOOP_CAP: Final = "redriven_too_often"
NO_VALUE: Final = "no_value"
UNREADABLE: Final = "unreadable"
TOO_LARGE: Final = "too_large"
REDRIVEN: Final = "redriven"  # some plan has sent it
TOO_MANY_TARGETS: Final = "too_many_targets"
DELETED: Final = "deleted"  # it was counted, and retention took it before it could be sent

CACHED_MAX: Final = 1_024


class RoutedLetter(NamedTuple):
    """A letter on its way."""

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

    def gone(self, targets: Iterable[str]) -> list[str]:
        """Planned targets that are no more, sorted."""
        return sorted(target for target in targets if target not in self._partitions)

    def target(self, letter: DeadLetter) -> tuple[str, str]:
        """(target, "") or ("", why not)."""
        if letter.headers is None:
            return "", UNREADABLE
        if letter.redrives >= self._loops_max:
            return "", LOOP_CAP
        if letter.reason == BY_REFERENCE and letter.value is None:
            return "", NO_VALUE
        target = self._plan.target or self._destination(letter)
        if target is None:
            return "", NO_TARGET
        if target == self._plan.topic:
            return "", LOOP
        if target in self._ways.reserved:
            return "", NOT_ALLOWED
        if target not in self._partitions:
            return "", NO_TOPIC
        if self._goes_back(letter, target) and target not in self._ways.sources:
            return "", NOT_A_SOURCE
        if target not in self._seen:
            if len(self._seen) >= TARGETS_MAX:
                return "", TOO_MANY_TARGETS
            self._seen.add(target)
        return target, ""

    def parcel(self, letter: DeadLetter, target: str, leg: str) -> RoutedLetter:
        """The letter as it is sent."""
        source = place_of(letter.text(SOURCE))
        if source is None or not self._goes_back(letter, target):
            return RoutedLetter(letter, target, redriven_headers(letter, to_its_source=False, leg=leg))
        # Without a key only the partition that it came from has the records of its id.
        stays = letter.key is None and source.partition < self._partitions.get(target, 0)
        headers = redriven_headers(letter, to_its_source=True, leg=leg)
        return RoutedLetter(letter, target, headers, source.partition if stays else -1)

    @staticmethod
    def _goes_back(letter: DeadLetter, target: str) -> bool:
        """Whether it is decided anew in its source, rather than delivered."""
        source = place_of(letter.text(SOURCE)) if is_quarantined(letter) else None
        return source is not None and source.topic == target

    def _destination(self, letter: DeadLetter) -> str | None:
        source = letter.text(SOURCE).partition("/")[0]
        key = (letter.policy, source, is_quarantined(letter))
        if key not in self._targets:
            if len(self._targets) >= CACHED_MAX:
                self._targets.clear()
            self._targets[key] = destination(letter, self._versions)
        return self._targets[key]
