"""Cancel, reschedule and fire a held message: a control record to the partition where it is held, and its receipt.

    look it up  ->  produce the control record  ->  wait until the ledger says what became of it

Whichever replica owns the partition does it; the receipt comes by the ledger, which every API reads. So the answer
is what happened, not what was asked for: 200 with the receipt, 409 when the message left before, 202 when nobody has
said in time: then the control record stands in Kafka and will be obeyed.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Writer, json_response
from api.message import Milliseconds, Past, refuse_past
from api.openapi.description import LOOK_UP, described
from api.ports import Acknowledged, Outgoing, Ports, SenderRefused, SenderUnavailable
from api.preconditions import message_etag, refuse_other
from api.problems import Problem, unprocessable
from api.routes.held import AGAIN_S, ID_BYTES_MAX, Partition, Text, missing_document, unavailable
from api.routes.messages import PositionOut
from api.routes.timeline import Row, final, place_of_row, places_document
from policies.decide import decide
from policies.decision import CANCEL, FIRE, RESCHEDULE, Facts, Quarantine
from policies.headers import ACTION, DELAY, DELIVER_AT, ID, IF_OFFSET
from sidecar.lookup.query import LookUpUnavailable
from sidecar.lookup.query import Query as HeldQuery
from sidecar.lookup.receipt import Settlement
from sidecar.lookup.receipts import ReceiptsUnavailable, TooManyWaiting
from sidecar.model.record import Outcome, Place, TopicPartition, with_places
from sidecar.model.times import with_times

RECEIPT_TIMEOUT_S: Final = 10.0  # longer than a lookup in a slow Redis takes, shorter than clients give up
RETRY_LATER: Final = {"Retry-After": "1"}
REFUSALS: Final = (
    "invalid-id", "unknown-message", "held-in-several-places", "too-late", "precondition-failed",
    "unknown-topic", "not-a-source", "too-large", "no-policy", "kafka-unavailable", *LOOK_UP,
)  # fmt: skip
_DONE: Final = {CANCEL: "cancelled", RESCHEDULE: "rescheduled", FIRE: "fired"}

router = APIRouter(tags=["messages"])

IfMatch = Annotated[
    str | None, Header(description="The ETag of the message that is meant: 412 when another has its id")
]


class Reschedule(BaseModel):
    """When it is to be due: `delay`, from now, or `deliver_at`."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra={"examples": [{"delay": "2h"}]})
    delay: Milliseconds | str | None = Field(default=None, description="Duration, or milliseconds")
    deliver_at: Milliseconds | str | None = Field(
        default=None, description="Epoch milliseconds, or RFC 3339 with a zone"
    )

    @model_validator(mode="after")
    def _one_time(self) -> "Reschedule":
        if (self.delay is None) == (self.deliver_at is None):
            raise ValueError("give delay or deliver_at, one of them")
        return self


class ReceiptOut(BaseModel):
    """Result of an action. `position` is the message's, `control` the control record's; `due` is epoch milliseconds,
    `due_utc` RFC 3339.
    """

    id: str
    source: str
    action: str
    outcome: str
    due: int
    due_utc: str | None
    position: PositionOut
    place: str
    control: PositionOut
    control_place: str


ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"model": ReceiptOut},
    202: {"model": ReceiptOut, "description": "Pending: its owner has not answered in time, and will obey"},
}


@router.delete(
    "/v1/messages/{id:path}",
    operation_id="cancel_message",
    responses=ANSWERS,
    **described("Cancel a held message", None, *REFUSALS),
)
async def cancel(
    caller: Writer, ports: GivenPorts, trail: GivenTrail, id: str, source: Text = "",
    partition: Partition = -1, if_match: IfMatch = None,
) -> Response:  # fmt: skip
    """Cancel a held message."""
    trail.note(id=id, source=source or None)
    return await _act(ports, id, Asked(CANCEL, source, partition, if_match))


@router.patch(
    "/v1/messages/{id:path}",
    operation_id="reschedule_message",
    responses=ANSWERS,
    **described("Reschedule a held message", Reschedule, *REFUSALS, "too-far", "bad-header", "in-the-past"),
)
async def reschedule(
    caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, id: str, source: Text = "",
    partition: Partition = -1, past: Past = False, if_match: IfMatch = None,
) -> Response:  # fmt: skip
    """Give a held message another due time."""
    trail.note(id=id, source=source or None)
    asked = validated(Reschedule, body)
    refuse_past(asked.deliver_at, ports.now_ms(), past)
    when = (DELAY, asked.delay) if asked.delay is not None else (DELIVER_AT, asked.deliver_at)
    return await _act(ports, id, Asked(RESCHEDULE, source, partition, if_match, (when[0], str(when[1]))))


@router.post(
    "/v1/messages/{id:path}/fire",
    operation_id="fire_message",
    responses=ANSWERS,
    **described("Emit a held message now", None, *REFUSALS),
)
async def fire(
    caller: Writer, ports: GivenPorts, trail: GivenTrail, id: str, source: Text = "",
    partition: Partition = -1, if_match: IfMatch = None,
) -> Response:  # fmt: skip
    """Emit a held message now."""
    trail.note(id=id, source=source or None)
    return await _act(ports, id, Asked(FIRE, source, partition, if_match))


class Asked(NamedTuple):
    """Action that is asked for, and to which of the messages with one id."""

    action: str
    source: str  # empty: any
    partition: int  # -1: any
    if_match: str | None
    when: tuple[str, str] | None = None  # a header: the time that a reschedule gives it

    @property
    def query(self) -> HeldQuery:
        """Where the message is looked for."""
        return HeldQuery(topic=self.source, partition=self.partition)


async def _act(ports: Ports, id: str, asked: Asked) -> Response:
    """Do it to the message that is found, and to no other: the control record names the offset where it is held."""
    if not id or len(id.encode(errors="surrogatepass")) > ID_BYTES_MAX:
        raise unprocessable("invalid-id", f"An id has 1 to {ID_BYTES_MAX} bytes.")
    held = await _held(ports, id, asked.query)
    place = place_of_row(held)
    refuse_other(asked.if_match, place)
    given = [(ID, id), (ACTION, asked.action), (IF_OFFSET, str(place.offset)), *([asked.when] if asked.when else [])]
    lane, headers, now_ms = TopicPartition(*place[:2]), [(name, text.encode()) for name, text in given], ports.now_ms()
    decision = decide(Facts(*lane, 0, now_ms, [], dict(headers)), ports.policies.table)
    if isinstance(decision, Quarantine):  # as the engine will see it: nothing is sent for that
        raise unprocessable(decision.reason.replace("_", "-"), decision.detail, reason=decision.reason)
    at = await _send(ports, Outgoing(lane.topic, lane.partition, None, None, headers, now_ms))
    control = Place(at.topic, at.partition, at.offset)
    try:
        receipt = await ports.receipts.outcome(control, RECEIPT_TIMEOUT_S)
    except (ReceiptsUnavailable, TooManyWaiting):
        receipt = None
    control = ports.receipts.own(control)
    if receipt is not None and receipt.related < 0:
        raise _missed(receipt, place, ports.receipts.settlement(place), asked.if_match)
    return _answer(id, asked.action, held, control, receipt)


async def _held(ports: Ports, id: str, query: HeldQuery) -> Row:
    """The one message that is held under this id; it may be on its way from one place to the next."""
    missing: Sequence[TopicPartition] = ()
    settlements: list[Settlement] = []
    for pause_s in (*AGAIN_S, None):
        try:
            find = ports.lookup.find if pause_s is not None else ports.lookup.find_to_end
            rows, missing = await find(id, query)
        except LookUpUnavailable as error:
            raise unavailable(error) from None
        settlements = [
            one for one in ports.receipts.settlements(id) if query.wants_lane(TopicPartition(*one.place[:2]))
        ]
        left = {one.place for one in settlements}
        held = [row for row in rows if place_of_row(row) not in left]
        if len({place_of_row(row)[:2] for row in held}) > 1:
            detail = "Messages with this id are held in several places: narrow by source or partition."
            raise Problem(409, "held-in-several-places", detail, **places_document(held))
        if held:
            return max(held, key=lambda row: place_of_row(row).offset)
        if pause_s is not None:
            await asyncio.sleep(pause_s)
    if missing:
        detail = "It was not found, but not every partition could be asked, or is read to its end. Ask again."
        raise Problem(503, "look-up-incomplete", detail, RETRY_LATER, **missing_document(missing))
    if (last := final(settlements)) is not None:
        raise _too_late(last.outcome.name.lower(), last.place)
    raise Problem(404, "unknown-message", "No message with this id is held.")


async def _send(ports: Ports, record: Outgoing) -> Acknowledged:
    try:
        return await ports.sender.send(record)
    except SenderRefused as error:
        raise unprocessable(error.reason.replace("_", "-"), f"Kafka refused the record: {error}.") from None
    except SenderUnavailable as error:
        detail = f"Kafka did not acknowledge the control record: {error}. It may or may not have it."
        raise Problem(503, "kafka-unavailable", detail, RETRY_LATER) from None


def _answer(id: str, action: str, held: Row, control: Place, receipt: Settlement | None) -> Response:
    document = {
        "id": id,
        "source": control.topic,
        "action": action,
        "outcome": "pending",
        "due": held["due"],
        "position": held["position"],
        "control": control._asdict(),
    }
    if receipt is None:  # its owner is busy, or away: it stands in Kafka and will be obeyed
        return json_response(_shown(document), 202)
    hit = control._replace(offset=receipt.related) if receipt.place == control else receipt.place
    if hit.offset > control.offset:  # a later one moved it on from the control's place: not what this one has hit
        hit = place_of_row(held)
    due_ms = held["due"] if action == CANCEL else receipt.due_ms
    document |= {"outcome": _DONE[action], "due": due_ms, "position": hit._asdict()}
    return json_response(_shown(document))


def _shown(document: Row) -> Row:
    return with_places(with_times(document, "due"), "position", "control")


def _missed(receipt: Settlement, place: Place, left: Settlement | None, if_match: str | None) -> Problem:
    """Why the control record has hit nothing. `left`: what became of the one that was meant, if known."""
    if receipt.outcome is Outcome.QUARANTINED:
        return unprocessable(receipt.reason.replace("_", "-"), "It was refused.", reason=receipt.reason)
    if left is None:
        return _too_late("leaving", place)
    if if_match is not None and left.outcome in (Outcome.MOVED, Outcome.REPLACED):
        etag = {"ETag": message_etag(place._replace(offset=left.related))}
        return Problem(412, "precondition-failed", f"The message was {left.outcome.name.lower()} meanwhile.", etag)
    return _too_late(left.outcome.name.lower(), place)


def _too_late(state: str, place: Place) -> Problem:
    detail = f"Too late: the message is {state}." if state != "leaving" else "Too late: the message is being emitted."
    return Problem(409, "too-late", detail, state=state, position=place._asdict(), place=str(place))
