"""Dead letters over REST: pages, groups by what went wrong, and single ones. The topics themselves are read."""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.access.auth import Caller
from api.audit import Trail
from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Reader, Writer, json_response, let_see
from api.message import Topic
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, decode, encode, unknown_cursor
from api.ports import Ports
from api.problems import Problem
from policies.duration import TIME_MAX_MS
from policies.headers import OFFSET_MAX
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Sent
from sidecar.model.times import with_times
from sidecar.operations.bulk.plan import HIDDEN
from sidecar.operations.dead_letters.browse import Look, Page, Shown
from sidecar.operations.dead_letters.dead_letter import (
    TEXT_LENGTH_MAX,
    WORD_LENGTH_MAX,
    DeadLetter,
    Fingerprint,
    Selection,
)
from sidecar.operations.dead_letters.dead_letter_log import LettersUnavailable
from sidecar.operations.dead_letters.groups.group import Frame, note_document
from sidecar.operations.dead_letters.groups.notes import NOTE_LENGTH_MAX, GroupNote, GroupState
from sidecar.operations.dead_letters.masking import Search
from sidecar.operations.dead_letters.reading import ReadingBusy, UnknownTopic
from sidecar.operations.dead_letters.redrive_routing import destination
from sidecar.operations.dead_letters.redriven_log import TooManyNotes

REFUSALS: Final = ("topic-not-found", "scans-busy", "kafka-unavailable")
NAME_AND_VALUE: Final = r"(?s)^([^=]+=.*)?$"
READ_MAX: Final = 1_000_000
OF: Final = "@"  # in a cursor, between a place and a time
router = APIRouter(tags=["dead letters"])

Answer = TypeVar("Answer")


class LettersQuery(Selection):
    """Parameters of every list of letters. All conditions must hold."""

    error: Annotated[
        str,
        Field(
            max_length=WORD_LENGTH_MAX,
            description="A part of the error's class, its message or the quarantine's detail, in any case, as the "
            "answer shows them: with `payload` addresses, too",
        ),
    ] = ""
    id: Annotated[str, Field(max_length=TEXT_LENGTH_MAX)] = ""
    key_prefix: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH_MAX, description="Of keys that aren't masked; needs the role write, and is recorded"
        ),
    ] = ""
    header: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH_MAX,
            pattern=NAME_AND_VALUE,
            description="`name=value` of a header that isn't masked; needs the role write, and is recorded",
        ),
    ] = ""
    limit: Limit = PAGE_DEFAULT
    cursor: Cursor = None
    payload: Annotated[bool, Field(description="Show key, value and headers, masked; needs the role write")] = False
    open: Annotated[bool, Field(description="Without those that were redriven or discarded")] = False

    def look(self) -> Look:
        """The search that the query asks for."""
        search = Search(self.error, self.id, self.key_prefix, self.header)
        return Look(self.selection(), self.open, self.payload, search=search)

    def selection(self) -> Selection:
        """The part that letters are compared with."""
        return Selection(**{name: getattr(self, name) for name in Selection.model_fields})

    def let_see(self, caller: Caller, trail: Trail, topics: Sequence[str]) -> None:
        """Let those see payloads, keys and headers who may; a search for them spells them out, letter by letter, so
        its words are hidden in the record. Raises `Problem` (403).
        """
        if not (self.payload or self.key_prefix or self.header):
            return
        hidden = {name: HIDDEN for name in ("error", "key_prefix", "header") if getattr(self, name)}
        asked = {**self.selection().model_dump(exclude_none=True), **({"id": self.id} if self.id else {}), **hidden}
        let_see(caller, trail, payload=self.payload, topics=topics, selection=asked)


class Filter(LettersQuery):
    """Parameters of the query; `topic` may be repeated."""

    topic: Annotated[list[Topic], Field(default_factory=list, max_length=50, description="Left out: all")]


@router.get("/v1/dead-letters", **described("List dead letters", None, *REFUSALS))
async def list_dead_letters(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, query: Annotated[Filter, Query()]
) -> Response:
    """Dead letters in order of topic, partition and offset; `remaining` is how many records are still to be read.

    What a letter died of is in `error_message` (as its consumer wrote it) and `detail` (of the quarantine); `error` is
    the name of its group, without what differs from one letter to the next.
    """
    query.let_see(caller, trail, query.topic)
    show = partial(_listed, ports, query.payload)
    asked = ports.letters.page(query.topic, query.look(), query.limit, _start(query.cursor), show)
    document = await answered(asked)
    trail.note(count=len(document["items"]))
    return json_response(document)


def _listed(ports: Ports, payload: bool, page: Page) -> dict[str, Any]:
    items = [{**_document(ports, letter, payload), **_fate(page.redriven.get(letter.place))} for letter in page.letters]
    return {"items": items, **_progress(page)}


class GroupFilter(Filter):
    """Parameters of the query for groups."""

    trend: Annotated[bool, Field(description="Count each by minute of the last hour, and by hour of the last day")] = (
        False
    )
    read_max: Annotated[
        int | None,
        Field(ge=1, le=READ_MAX, description="Letters to read from Kafka at most, if less than the setting"),
    ] = None


@router.get("/v1/dead-letters/groups", **described("Count dead letters by what went wrong", None, *REFUSALS))
async def list_dead_letter_groups(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, query: Annotated[GroupFilter, Query()]
) -> Response:
    """Letters that failed alike, counted, of the piece that one page reads: add up the pages for all. `state` is what
    people have said of a group, or `back_again`: a letter has come since it was resolved, and that of any page counts.

    With `trend` all pages are of the minutes and hours of the first one.
    """
    query.let_see(caller, trail, query.topic)
    start, now_ms = _start_of_groups(query.cursor)
    frame = Frame(now_ms or ports.now_ms()) if query.trend else None
    look = query.look()._replace(trend_ms=frame and frame.now_ms, read_max=query.read_max)
    groups, page = await answered(ports.letters.groups(query.topic, look, start))
    told = {"items": [group.document() for group in groups], **_progress(page, frame)}
    return json_response({**told, **({} if frame is None else {"trend": frame.document()})})


class GroupWords(BaseModel):
    """Words about a group of failures. `new` without a note: as if nobody had said anything."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"examples": [{"state": "resolved", "note": "mended in 4.2"}]}
    )
    state: Literal["new", "known", "resolved"]
    note: Annotated[str, Field(max_length=NOTE_LENGTH_MAX)] = ""


@router.put(
    "/v1/dead-letters/{topic}/groups/{fingerprint}",
    **described(
        "Say where people stand with a group of failures", GroupWords, "too-many-groups", "invalid-parameter", *REFUSALS
    ),
)
async def put_dead_letter_group(
    caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, topic: Topic, fingerprint: Fingerprint
) -> Response:
    """State and note of a group, in place of those of before. A resolved one whose letters come again is back again."""
    asked = validated(GroupWords, body)
    trail.note(state=asked.state)
    said = GroupNote(state=GroupState(asked.state), note=asked.note, author=caller.name, time_ms=ports.now_ms())
    try:
        note = await answered(ports.letters.say(topic, fingerprint, said))
    except TooManyNotes as error:
        raise Problem(409, "too-many-groups", str(error)) from None
    return json_response({"topic": topic, "fingerprint": fingerprint, "state": note.state, **note_document(note)})


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
        fate["redriven"] |= {"came_back": came_back, "came_back_place": came_back, "is_whole": shown.is_whole}
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


def _progress(page: Page, frame: Frame | None = None) -> dict[str, Any]:
    text = str(page.following) if frame is None else f"{page.following}{OF}{frame.now_ms}"
    following = None if page.following is None else encode(text)
    return {"next": following, "scanned": page.scanned, "remaining": page.remaining}


def _start(cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    place = Place.of_text(decode(cursor))
    if place is None:
        raise unknown_cursor()
    return place


def _start_of_groups(cursor: str | None) -> tuple[Place | None, int | None]:
    """Place to go on from, and the time of the first page's trend, where it had one."""
    if cursor is None:
        return None, None
    text, _, now_ms = decode(cursor).partition(OF)
    place = Place.of_text(text)
    if place is None or (now_ms and not (now_ms.isascii() and now_ms.isdigit() and int(now_ms) <= TIME_MAX_MS)):
        raise unknown_cursor()
    return place, int(now_ms) if now_ms else None


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
