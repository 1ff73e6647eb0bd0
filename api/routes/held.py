"""Looking messages up, listing what is held, and how much is due when: for the whole group, never one replica alone.

What some partition could not be asked about is named in every answer: `partial`, and `missing` with the partitions.
Nothing here shows a payload or a key, but for one message on demand (`payload=true`), masked as dead letters are.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from api.dependencies import GivenPorts, GivenTrail, Reader, json_response, let_see
from api.openapi.description import LOOK_UP, described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, decode, encode, unknown_cursor
from api.ports import Ports
from api.preconditions import message_etag
from api.problems import Problem, unprocessable
from api.routes.dead_letters import NAME_AND_VALUE, answered
from api.routes.timeline import (
    Row,
    final,
    held_document,
    missed,
    paused_by,
    place_of_row,
    places_document,
    row_document,
    settled_document,
    with_ledger,
    with_pause,
)
from policies.duration import parse_time
from policies.errors import FormatError
from policies.headers import ID
from sidecar.lookup.query import START, TIME_MAX_MS, Key, LookUpUnavailable, key_of_row
from sidecar.lookup.query import Query as HeldQuery
from sidecar.lookup.receipt import Entry, Settlement
from sidecar.model.record import Place, TopicPartition
from sidecar.model.times import with_times
from sidecar.operations.bulk.plan import HIDDEN
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.masking import Masking

MINUTE_MS: Final = 60_000
MINUTES_MAX: Final = 1_440
TEXT_LENGTH_MAX: Final = 1_024
ID_BYTES_MAX: Final = 1_024
# A record on its way from one place to the next may be in neither: it is looked for again before it is called unknown.
AGAIN_S: Final = (0.1, 0.3)

router = APIRouter(tags=["messages"])

Text = Annotated[str, Query(max_length=TEXT_LENGTH_MAX)]
Partition = Annotated[int, Query(ge=-1, le=(1 << 31) - 1, description="-1: all")]
Word = Annotated[str, Field(max_length=TEXT_LENGTH_MAX)]


class Filter(BaseModel):
    """Parameters of the list: conditions, which must all hold, and how much of it is asked for."""

    source: Word = ""
    topic: Word = ""
    partition: Annotated[int, Field(ge=-1, le=(1 << 31) - 1, description="-1: all")] = -1
    policy: Word = ""
    target: Word = ""
    id: Annotated[str, Field(max_length=ID_BYTES_MAX)] = ""
    key_prefix: Annotated[Word, Field(description="Needs the role write, and is recorded")] = ""
    header: Annotated[
        str,
        Field(
            max_length=TEXT_LENGTH_MAX,
            pattern=NAME_AND_VALUE,
            description="`name=value` of a header; needs the role write, and is recorded",
        ),
    ] = ""
    error_class: Word = ""
    due_from: Word = ""
    due_to: Word = ""
    limit: Limit = PAGE_DEFAULT
    cursor: Cursor = None
    count: Annotated[bool, Field(description="How many there are in all, where that is known without a search")] = False

    def query(self) -> HeldQuery:
        """As look-ups ask. Raises `Problem` (422)."""
        query = HeldQuery(
            _one_source(self.source, self.topic),
            self.partition,
            self.policy,
            self.target,
            self.key_prefix,
            self.error_class,
            time_of("due_from", self.due_from, -1),
            time_of("due_to", self.due_to, TIME_MAX_MS),
            self.id,
            self.header,
        )
        if query.due_to_ms <= query.due_from_ms:
            raise unprocessable("invalid-range", "due_to must be later than due_from.")
        return query


class HeldPage(BaseModel):
    """One page of held messages by due time. It may have fewer than `limit`: only `next: null` is the end. `count` is
    there where it was asked for; null: it isn't known without a search.
    """

    items: list[dict[str, Any]]
    next: str | None
    count: int | None = None
    partial: bool
    missing: list[dict[str, Any]]


@router.get(
    "/v1/messages",
    responses={200: {"model": HeldPage}},
    **described("List held messages", None, "invalid-range", "look-up-unavailable"),
)
async def list_messages(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, asked: Annotated[Filter, Query()]
) -> Response:
    """Held messages by due time. All conditions must hold; `due_from` <= due < `due_to`, each RFC 3339 or epoch ms.

    `policy` is a name or `name@version`, `key_prefix` the first characters of the key in UTF-8, `header` a whole
    `name=value`. `topic`, as in the filters of changes, is the source too. With `id` there is one page.
    """
    query = asked.query()
    after = START if asked.cursor is None else _key_of_cursor(asked.cursor)
    if query.key_prefix or query.header:  # who may ask for them spells them out, letter by letter
        hidden = {name: HIDDEN for name in ("key_prefix", "header") if query.conditions().get(name)}
        let_see(caller, trail, filter={**query.conditions(), **hidden})
    try:
        rows, following, missing = await _page(ports, query, after, asked.limit)
        count, uncounted = await _count(ports, query) if asked.count else (None, ())
    except LookUpUnavailable as error:
        raise unavailable(error) from None
    trail.note(count=len(rows))
    if asked.count and count is None and asked.cursor is None and following is None:
        count = len(rows)
    following_cursor = None if following is None else encode(json.dumps(following))
    pauses = ports.pauses.alive()
    items = [{**row_document(row), "paused": paused_by(row, pauses)} for row in rows]
    counted = {"count": count} if asked.count else {}
    lacking = missing_document(sorted({*missing, *uncounted}))
    return json_response({"items": items, "next": following_cursor, **counted, **lacking})


async def _page(
    ports: Ports, query: HeldQuery, after: Key, limit: int
) -> tuple[list[Row], Key | None, Sequence[TopicPartition]]:
    """The next rows, where to go on, and what is missing. An id has an index: what has it is found at once, and few."""
    if not query.id:
        return await ports.lookup.page(query, after, limit)
    rows, missing = await ports.lookup.find(query.id, query)
    return sorted((row for row in rows if key_of_row(row) > after), key=key_of_row), None, missing


async def _count(ports: Ports, query: HeldQuery) -> tuple[int | None, Sequence[TopicPartition]]:
    """Held messages of whole topics or partitions, and what is missing; None where anything else is asked for: that
    needs a search (a change that is planned counts what it means).
    """
    places = HeldQuery(query.topic, query.partition)
    if query != places:
        return None, ()
    counts, missing = await ports.lookup.forecast(places, 0)
    return sum(counts.values()), missing


@router.get("/v1/forecast", **described("Count what is due, by minute", None, "look-up-unavailable"))
async def get_forecast(
    caller: Reader,
    ports: GivenPorts,
    source: Text = "",
    topic: Text = "",
    partition: Partition = -1,
    minutes: Annotated[int, Query(ge=1, le=MINUTES_MAX)] = 60,
) -> Response:
    """How many held messages are due in each of the next minutes; how many are overdue, and due later.

    `topic` is the source too.
    """
    query = HeldQuery(_one_source(source, topic), partition)
    this = ports.now_ms() // MINUTE_MS
    until = this + minutes
    try:
        counts, missing = await ports.lookup.forecast(query, until * MINUTE_MS)
    except LookUpUnavailable as error:
        raise unavailable(error) from None
    items = [
        with_times({"minute": minute * MINUTE_MS, "held": counts.get(minute, 0)}, "minute")
        for minute in range(this, until)
    ]
    before = sum(count for minute, count in counts.items() if 0 <= minute < this)
    return json_response({"items": items, "before": before, "later": counts.get(-1, 0), **missing_document(missing)})


@router.get(
    "/v1/messages/{id:path}",
    **described(
        "Show a message and its way",
        None,
        "invalid-id",
        "unknown-message",
        "held-in-several-places",
        "scans-busy",
        "kafka-unavailable",
        *LOOK_UP,
        headers={200: ["ETag"]},
    ),
)
# tidy: what a caller may say of one message
async def get_message(
    caller: Reader,
    ports: GivenPorts,
    trail: GivenTrail,
    id: str,
    source: Text = "",
    partition: Partition = -1,
    payload: bool = False,
) -> Response:
    """One message by its id, with all that is known of its way. Of settled ones, those that the ledger said last.

    A held one has an `ETag`: another message with this id has another one, as has this one when it was moved. With
    `payload=true` the record is read where it was accepted; `payload_known: false`: the topic has it no more. `paused`
    is the pause of its target or policy that it waits for once it is due.
    """
    if payload:
        let_see(caller, trail, id=id, payload=True)
    told, missing = await find_message(ports, id, HeldQuery(topic=source, partition=partition))
    document, etag = told.document, {}
    if document["state"] == "held":
        document, etag = with_pause(document, ports.pauses.alive()), {"ETag": message_etag(place_of_row(document))}
    if payload:
        document = {**document, **await _payload(ports, id, Place(**document["accepted"]))}
    document["timeline"] = with_ledger(document["timeline"], ports.about.settings.ledger_topic)
    return json_response({**document, **missing_document(missing)}, headers=etag)


async def _payload(ports: Ports, id: str, place: Place) -> Row:
    """Key, value and headers as they may be shown, read from the source. Raises `Problem` (503)."""
    shown = await answered(ports.letters.record(place, partial(_shown, ports.letters.rules.masking, id)))
    return {"payload": shown, "payload_known": shown is not None}


def _shown(masking: Masking, id: str, record: DeadLetter) -> Row | None:
    """None: another record lies there, since the topic was made anew."""
    return masking.payload(record) if record.text(ID) == id else None


class Told(NamedTuple):
    """A message as it is told of, and the settlement that ended it; None: it is held."""

    document: Row
    last: Settlement | None


async def find_message(ports: Ports, id: str, query: HeldQuery) -> tuple[Told, Sequence[TopicPartition]]:
    """The message with this id, and the partitions that could not be asked. Raises `Problem`: 404, 409, 422, 503."""
    if not id or len(id.encode(errors="surrogatepass")) > ID_BYTES_MAX:
        raise unprocessable("invalid-id", f"An id has 1 to {ID_BYTES_MAX} bytes.")
    missing: Sequence[TopicPartition] = ()
    for pause_s in (*AGAIN_S, None):
        told, missing = await _look_up(ports, id, query, to_end=pause_s is None)
        if told is not None:
            return told, missing
        if pause_s is not None:
            await asyncio.sleep(pause_s)
    if missing:
        detail = "It was not found, but not every partition could be asked, or is read to its end. Ask again."
        raise Problem(503, "look-up-incomplete", detail, {"Retry-After": "1"}, **missing_document(missing))
    detail = "No message with this id is held, and none is among those that were settled last."
    controls = missed(
        [one for one in ports.receipts.settlements(id) if query.wants_lane(TopicPartition(*one.place[:2]))]
    )
    controls = with_ledger(controls, ports.about.settings.ledger_topic)
    raise Problem(404, "unknown-message", detail, None, **{"controls": controls} if controls else {})


async def _look_up(
    ports: Ports, id: str, query: HeldQuery, *, to_end: bool = False
) -> tuple[Told | None, Sequence[TopicPartition]]:
    try:
        rows, missing = await (ports.lookup.find_to_end if to_end else ports.lookup.find)(id, query)
    except LookUpUnavailable as error:
        raise unavailable(error) from None
    settlements = [one for one in ports.receipts.settlements(id) if query.wants_lane(TopicPartition(*one.place[:2]))]
    entries = [one for one in ports.receipts.entries(id) if query.wants_lane(TopicPartition(*one.place[:2]))]
    return _told(id, rows, settlements, entries), missing


def _told(id: str, rows: list[Row], settlements: list[Settlement], entries: list[Entry]) -> Told | None:
    """One message; a 409 with the positions when several are held under this id."""
    left = {one.place for one in settlements}
    held = [row for row in rows if place_of_row(row) not in left]  # settled since it was looked at
    if len(held) > 1:
        detail = "Several messages with this id are held: narrow by source or partition."
        raise Problem(409, "held-in-several-places", detail, **places_document(held))
    if held:
        return Told(held_document(held[0], settlements, entries), None)
    last = final(settlements)
    return None if last is None else Told(settled_document(id, last, settlements, entries), last)


# --- parameters and answers ---------------------------------------------------------------------------------------


def _one_source(source: str, topic: str) -> str:
    """The one topic that two parameters mean."""
    if source and topic and source != topic:
        raise unprocessable("invalid-parameter", "source and topic are the same: give one of them.")
    return source or topic


def time_of(name: str, text: str, otherwise: int) -> int:
    """Epoch milliseconds of a parameter."""
    if not text:
        return otherwise
    try:
        return parse_time(text)
    except FormatError as error:
        raise unprocessable("invalid-parameter", f"{name}: {error.problem}") from None


def unavailable(error: LookUpUnavailable) -> Problem:
    """503: nobody can be asked."""
    return Problem(503, "look-up-unavailable", f"Nothing can be looked up now: {error}.", {"Retry-After": "1"})


def missing_document(missing: Sequence[TopicPartition]) -> dict[str, Any]:
    """Partitions of the group that could not be asked, as part of an answer."""
    return {
        "partial": bool(missing),
        "missing": [{"topic": lane.topic, "partition": lane.partition} for lane in missing],
    }


def _key_of_cursor(cursor: str) -> Key:
    try:
        due_ms, topic, partition, offset = json.loads(decode(cursor))
        if not isinstance(topic, str) or {type(due_ms), type(partition), type(offset)} != {int}:
            raise ValueError("not a place")
    except (ValueError, TypeError, RecursionError):
        raise unknown_cursor() from None
    return Key(due_ms, topic, partition, offset)
