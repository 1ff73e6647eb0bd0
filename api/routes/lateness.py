"""`GET /v1/lateness`: why one message was late, or is: what lay between its due time and its settlement.

A message is named by `id` or by `position`, as parameters: an id may have any characters, also those of a path.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from api.dependencies import GivenPorts, Reader, json_response
from api.openapi.description import LOOK_UP, described
from api.ports import Conditions, Ports
from api.problems import Problem, unprocessable
from api.routes.held import Partition, Text, Told, find_message, missing_document, unavailable
from api.routes.timeline import Row, settled_document
from sidecar.conditions.attribution import Late, Part, attributed, subjects_of
from sidecar.lookup.query import OVERFLOW, START, LookUpUnavailable
from sidecar.lookup.query import Query as HeldQuery
from sidecar.model.condition import SAMPLE_MS
from sidecar.model.record import Place, TopicPartition, with_places
from sidecar.model.times import with_times

PAGE: Final = 500
PAGES_MAX: Final = 20  # of overdue messages that are looked through for a position
BACKLOG_S: Final = "60"  # when to ask again, where more than that are overdue

router = APIRouter(tags=["messages"])

Position = Annotated[str, Query(max_length=1_024, description="topic/partition/offset, as in tickover-origin")]


class LatenessOut(BaseModel):
    """Why a message was late. Times are epoch milliseconds, and `*_utc` the same in RFC 3339; the parts touch, and
    their sum is `lateness_ms`.

    `problem`: why recorded conditions may be missing. `resolution_ms`: how exact they are.
    """

    id: str | None
    source: str
    position: dict[str, Any]
    place: str
    state: str
    target: str
    due: int
    due_utc: str | None
    until: int
    until_utc: str | None
    lateness_ms: int
    parts: list[dict[str, Any]]
    by_cause: dict[str, int]
    resolution_ms: int
    problem: str | None
    partial: bool
    missing: list[dict[str, Any]]


@router.get(
    "/v1/lateness",
    responses={200: {"model": LatenessOut}},
    **described(
        "Say why a message was late", None, "invalid-parameter", "held-in-several-places",
        "unknown-message", *LOOK_UP,
    ),
)  # fmt: skip
async def get_lateness(
    caller: Reader,
    ports: GivenPorts,
    id: Text = "",
    position: Position = "",
    source: Text = "",
    partition: Partition = -1,
) -> Response:
    """Why a message was late, or is: the time from due to settled, or to now, in parts with a recorded cause each.

    It is named by `id`, perhaps with `source` and `partition`, or by `position`. Of settled ones, those that the ledger
    said last.
    """
    if bool(id) == bool(position) or (position and (source or partition >= 0)):
        raise unprocessable("invalid-parameter", "Give an id, perhaps with source and partition, or a position.")
    missing: Sequence[TopicPartition]
    try:
        if id:
            told, missing = await find_message(ports, id, HeldQuery(topic=source, partition=partition))
        else:
            told, missing = await _find_at(ports, _place_of(position))
        late, parts, problem = await ports.lookup.run_alone(lambda: _explain(ports.conditions, told))
    except LookUpUnavailable as error:
        raise unavailable(error) from None
    answer = {
        **{name: told.document[name] for name in ("id", "source", "position", "state", "target", "due")},
        "until": late.until_ms,
        "lateness_ms": max(late.until_ms - late.due_ms, 0),
        "parts": [_part(part) for part in parts],
        "by_cause": _by_cause(parts),
        "resolution_ms": SAMPLE_MS,
        "problem": "what all replicas have recorded can't be read now" if problem else None,
    }
    shown = with_places(with_times(answer, "due", "until"), "position")
    return json_response({**shown, **missing_document(missing)})


def _explain(conditions: Conditions, told: Told) -> tuple[Late, list[Part], str]:
    """How late the message is, in parts, and why some of what was recorded may be missing. Blocks."""
    late = _late_of(told)
    recorded = conditions.recorded(late.due_ms, subjects_of(late))
    if told.last is None:
        late = late._replace(until_ms=recorded.now_ms)
    return late, attributed(late, recorded), recorded.problem


def _late_of(told: Told) -> Late:
    """Facts of the message. `until_ms` of a held one is not known here."""
    document, last = told
    lane = TopicPartition(document["source"], document["position"]["partition"])
    is_retry, policy = bool(document["attempt"]), document.get("policy") or ""
    if last is None:
        was_far = document["tier"] == OVERFLOW or any(one["event"] == OVERFLOW for one in document.get("timeline", ()))
        known_far = was_far or None  # one in the wheel may have come from there, and the ledger forgotten that
        return Late(lane, document["target"], document["due"], document["due"], -1, is_retry, known_far, policy)
    return Late(lane, last.target, last.due_ms, last.fact_ms, last.settled_ms, is_retry, last.in_overflow, policy)


async def _find_at(ports: Ports, place: Place) -> tuple[Told, Sequence[TopicPartition]]:
    """The message that came at a place: settled, as the ledger has it, or held and overdue."""
    last = await ports.lookup.run_alone(lambda: ports.receipts.search(place))
    if last is not None and not last.is_move:
        return Told(settled_document(last.id, last, [last], ()), last), ()
    offsets = {place.offset, ports.receipts.own(place).offset}
    query = HeldQuery(topic=place.topic, partition=place.partition, due_to_ms=ports.now_ms() + 1)
    after, missing, looked_at = START, list[TopicPartition](), 0
    for _ in range(PAGES_MAX):
        rows, following, missing = await ports.lookup.page(query, after, PAGE)
        looked_at += len(rows)
        for row in rows:
            if not offsets.isdisjoint((row["position"]["offset"], row["accepted"]["offset"])):
                return Told(row, None), missing
        if following is None:
            break
        after = following
    else:
        detail = (
            f"It is none of the first {looked_at} overdue messages of its partition, and there are more. Ask by its id."
        )
        raise Problem(503, "look-up-incomplete", detail, {"Retry-After": BACKLOG_S}, **missing_document(missing))
    if missing:
        detail = "It was not found, but its partition could not be asked. Ask again."
        raise Problem(503, "look-up-incomplete", detail, {"Retry-After": "1"}, **missing_document(missing))
    detail = "No overdue message is held there, and none is among those that were settled last."
    raise Problem(404, "unknown-message", detail)


def _place_of(position: str) -> Place:
    """Raises `Problem` (422)."""
    place = Place.of_text(position)
    if place is None:
        raise unprocessable("invalid-parameter", "A position is topic/partition/offset.")
    return place


def _part(part: Part) -> Row:
    told = {
        "cause": part.cause,
        "from": part.from_ms,
        "to": part.to_ms,
        "ms": part.to_ms - part.from_ms,
        "known_of": part.known,
        "replica": part.replica or None,
    }
    return with_times(told, "from", "to")


def _by_cause(parts: Sequence[Part]) -> dict[str, int]:
    """Milliseconds of each cause, the largest first."""
    total = Counter[str]()
    for part in parts:
        total[part.cause] += part.to_ms - part.from_ms
    return dict(total.most_common())
