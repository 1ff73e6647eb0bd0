"""Context of the work on changes: all that it needs of its process."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from policies.table import PolicyTable
from sidecar.lookup.query import Key, Query
from sidecar.model.record import Headers, LaneId
from sidecar.operations.bulk.outcome import Lines, Place
from sidecar.operations.bulk.plan import Item

Rows = Sequence[Mapping[str, Any]]


class LookUp(Protocol):
    """The group's held records (`sidecar.lookup.group.GroupLookUp`). Raises LookUpUnavailable."""

    def page(
        self, query: Query, after: Key, limit: int, ends: Mapping[LaneId, int]
    ) -> tuple[Rows, Key | None, Sequence[LaneId]]: ...

    def ends(self, query: Query) -> tuple[Mapping[LaneId, int], Sequence[LaneId]]: ...


class Sources(NamedTuple):
    """Held records, and Kafka's ids of the topics that they were read from, by name: of topics that are there; "" where
    the cluster has none. `topic_ids` raises LogUnavailable.
    """

    lookup: LookUp
    topic_ids: Callable[[Collection[str]], Mapping[str, str]]


class Couriers(Protocol):
    """`controls.Courier`."""

    def send(self, controls: Sequence[tuple[Item, Headers]], now_ms: int) -> list[int | str]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """`aborted(plan_id)`: somebody has asked for its end. `sent_by(plan_id, places)`: those of these places where a
    control record of this plan lies; raises LogUnavailable.
    """

    topic: str  # of changes
    sources: Sources
    lines: Lines
    table: Callable[[], PolicyTable]
    courier: Callable[[], Couriers]
    sent_by: Callable[[str, Collection[Place]], Collection[Place]]
    receipts_end: Callable[[], int]
    aborted: Callable[[str], bool]
    owner: str
    in_flight_max: int
    answer_s: float
    now_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    wait: Callable[[float], bool]  # sleeps; True: the process is asked to stop
