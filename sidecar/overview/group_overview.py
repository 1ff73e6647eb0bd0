"""The whole group at one moment: every replica's report, those that give signs of life and don't answer, and lag."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from sidecar.conditions.attribution import Sign
from sidecar.kafka.backlog import BacklogUnavailable
from sidecar.lookup.report import MINUTE_MS, MINUTES, Overview
from sidecar.model.condition import Pausable, Pause
from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import OverflowFailure
from sidecar.overview.seen import Seen

ENDS_KEPT_S: Final = 10.0  # of the sources' partitions: asking for them makes a client

log = logging.getLogger(__name__)


class Replicas(Protocol):
    """The replicas of the group (`sidecar.lookup.group.GroupLookUp`)."""

    def overview(self, until_ms: int, others: int) -> Overview: ...


class Asked(NamedTuple):
    """Sources of a `GroupOverview`: replicas, signs of life, where the sources' partitions end, pauses in force."""

    replicas: Replicas
    signs: Callable[[], Sequence[Sign]]
    ends: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]
    pauses: Callable[[], Mapping[Pausable, Pause]]


class GroupOverview:
    """`look` blocks, and raises nothing: what could not be asked is told as a problem, or missing. For one thread at a
    time.
    """

    def __init__(
        self, group: str, guarantee: str, asked: Asked, now_ms: Callable[[], int], monotonic_s: Callable[[], float]
    ) -> None:
        self._group = group
        self._guarantee = guarantee
        self._asked = asked
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._ends: Mapping[TopicPartition, int] = {}
        self._ends_s = -ENDS_KEPT_S

    def look(self) -> Seen:
        """The group as of now: waits for other replicas, at most as long as a look-up does."""
        signs, problem = self._signs()
        at_ms = self._now_ms()
        until_ms = (at_ms // MINUTE_MS + MINUTES) * MINUTE_MS
        overview = self._asked.replicas.overview(until_ms, max(len(signs) - 1, 0))
        answered = {one.report.run for one in overview.replicas}
        silent = sorted((one for one in signs if one.run not in answered), key=lambda sign: sign.replica)
        if problem and not overview.problem:
            overview = overview._replace(problem=problem)
        lags, pauses = self._lags(overview), self._asked.pauses()
        return Seen(self._group, self._guarantee, at_ms, overview, silent, lags, pauses)

    def _signs(self) -> tuple[Sequence[Sign], str]:
        try:
            return self._asked.signs(), ""
        except OverflowFailure as error:
            return (), str(error) or type(error).__name__

    def _lags(self, overview: Overview) -> dict[TopicPartition, int]:
        read = {lane: offset for one in overview.replicas for lane, offset in one.read.items()}
        now_s = self._monotonic_s()
        if now_s - self._ends_s >= ENDS_KEPT_S or not read.keys() <= self._ends.keys():
            try:
                self._ends = self._asked.ends(read)
            except BacklogUnavailable as error:
                log.warning("the ends of sources are not known", extra={"error": str(error)})
                self._ends = {}
            self._ends_s = now_s
        return {lane: max(self._ends[lane] - offset, 0) for lane, offset in read.items() if lane in self._ends}
