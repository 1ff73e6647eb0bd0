"""Dead letters over REST: pages, groups by what went wrong, and single ones. The topics themselves are read."""

from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from api.dependencies import GivenPorts, GivenTrail, Reader, json_response, let_see
from api.message import Topic
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, decode, encode, unknown_cursor
from api.ports import Ports
from api.problems import Problem
from policies.headers import OFFSET_MAX
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Sent
from sidecar.model.times import with_times
from sidecar.operations.dead_letters.browse import Look, Page, ReadingBusy, Shown, UnknownTopic
from sidecar.operations.dead_letters.dead_letter import DeadLetter, Selection, place_of
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.redrive_routing import destination

REFUSALS: Final = ("topic-not-found", "scans-busy", "kafka-unavailable")
router = APIRouter(tags=["dead letters"])

Answer = TypeVar("Answer")


class Filter(Selection):
    """Parameters of the query; `topic` may be repeated."""

    topic: Annotated[list[Topic], Field(default_factory=list, max_length=50, description="Left out: all")]
    limit: Limit = PAGE_DEFAULT
    cursor: Cursor = None
    payload: Annotated[bool, Field(description="Show key, value and headers, masked; needs the role write")] = False

    open: Annotated[bool, Field(description="Without those that were redriven or discarded")] = False

    def look(self) -> Look:
        """The search that the query asks for."""
        return Look(self.selection(), self.open, self.payload)

    def selection(self) -> Selection:
        """The part that letters are compared with."""
        return Selection(**{name: getattr(self, name) for name in Selection.model_fields})


@router.get("/v1/dead-letters", **described("List dead letters", None, *REFUSALS))
async def list_dead_letters(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, query: Annotated[Filter, Query()]
) -> Response:
    """Dead letters in order of topic, partition and offset; `remaining` is how many records are still to be read.

    What a letter died of is in `error_message` (as its consumer wrote it) and `detail` (of the quarantine); `error` is
    the name of its group, without what differs from one letter to the next.
    """
    if query.payload:
        selection = query.selection().model_dump(exclude_none=True)
        let_see(caller, trail, payload=True, topics=query.topic, selection=selection)
    show = partial(_listed, ports, query.payload)
    asked = ports.letters.page(query.topic, query.look(), query.limit, _start(query.cursor), show)
    document = await answered(asked)
    trail.note(count=len(document["items"]))
    return json_response(document)


def _listed(ports: Ports, payload: bool, page: Page) -> dict[str, Any]:
    items = [{**_document(ports, letter, payload), **_fate(page.redriven.get(letter.place))} for letter in page.letters]
    return {"items": items, **_progress(page)}


@router.get("/v1/dead-letters/groups", **described("Count dead letters by what went wrong", None, *REFUSALS))
async def list_dead_letter_groups(caller: Reader, ports: GivenPorts, query: Annotated[Filter, Query()]) -> Response:
    """Letters that failed alike, counted, of the piece that one page reads: add up the pages for all."""
    groups, page = await answered(ports.letters.groups(query.topic, query.look(), _start(query.cursor)))
    return json_response({"items": [group.document() for group in groups], **_progress(page)})


@router.get(
    "/v1/dead-letters/{topic}/{partition}/{offset}",
    **described("Show a dead letter", None, "dead-letter-not-found", *REFUSALS),
)
async def get_dead_letter(
    caller: Reader,
    ports: GivenPorts,
    trail: GivenTrail,
    topic: Topic,
    partition: Annotated[int, Field(ge=0, lt=1 << 31)],
    offset: Annotated[int, Field(ge=0, le=OFFSET_MAX)],
    payload: bool = False,
) -> Response:
    """One dead letter by its place. What it died of is in `error_message` and `detail`, as in the list."""
    if payload:
        let_see(caller, trail, payload=True)
    document = await answered(ports.letters.one(Place(topic, partition, offset), partial(_single, ports, payload)))
    if document is None:
        raise Problem(404, "dead-letter-not-found", "There is no record at this place, or none any more.")
    return json_response(document)


def _single(ports: Ports, payload: bool, shown: Shown) -> dict[str, Any]:
    """Of a letter that was sent again `came_back` is where it lies now, null where it didn't come back, or not as far
    as was looked (`is_whole`).
    """
    fate = _fate(shown.sent)
    if fate["redriven"] is not None:
        came_back = None if shown.came_back is None else str(shown.came_back)
        fate["redriven"] |= {"came_back": came_back, "is_whole": shown.is_whole}
    return {**_document(ports, shown.letter, payload), **fate}


def _fate(sent: Sent | None) -> dict[str, Any]:
    """By which plan a letter was `redriven` or `discarded`, and between which times; both null: it is open."""
    told = (
        None
        if sent is None
        else with_times({"plan": sent.plan, "from": sent.first_ms, "to": sent.last_ms}, "from", "to")
    )
    is_discarded = sent is not None and sent.discarded
    return {"redriven": None if is_discarded else told, "discarded": told if is_discarded else None}


def _document(ports: Ports, letter: DeadLetter, payload: bool) -> dict[str, Any]:
    """`target` is where it would go again; null: that needs to be said. Addresses are shown with the payload alone."""
    masking, target = ports.letters.rules.masking, destination(letter, ports.policies.versions)
    document = {**letter.document(), **masking.cause(letter, with_addresses=payload), "target": target}
    return {**document, "payload": masking.payload(letter)} if payload else document


def _progress(page: Page) -> dict[str, Any]:
    following = None if page.following is None else encode(str(page.following))
    return {"next": following, "scanned": page.scanned, "remaining": page.remaining}


def _start(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    place = place_of(decode(cursor))
    if place is None:
        raise unknown_cursor()
    return place


async def answered(asked: Awaitable[Answer]) -> Answer:
    """Await an answer about dead letters. Raises `Problem` (404, 503)."""
    try:
        return await asked
    except UnknownTopic as error:
        raise Problem(404, "topic-not-found", f"{error} is no topic of dead letters here.") from None
    except ReadingBusy:
        detail = "Too many scans of dead letters are under way."
        raise Problem(503, "scans-busy", detail, {"Retry-After": "1"}) from None
    except LettersUnavailable as error:
        detail = f"The dead letters can't be read at the moment: {error}."
        raise Problem(503, "kafka-unavailable", detail, {"Retry-After": "1"}) from None
