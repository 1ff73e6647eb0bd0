"""`POST /v1/messages` and `POST /v1/messages:batch`: delayed messages without a Kafka client. Accepted means
acknowledged by Kafka.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel
from starlette.responses import Response

from api.body import Body, validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Writer, json_response
from api.message import (
    Batch,
    Draft,
    NewMessage,
    NewMessages,
    Past,
    draft,
    new_id,
    refuse_past,
    repeatable_id,
    source_of,
)
from api.openapi.description import described
from api.ports import (
    Acknowledged,
    Answered,
    Busy,
    Fresh,
    IdempotencyUnavailable,
    Mismatch,
    Outgoing,
    Ports,
    SenderRefused,
    SenderUnavailable,
)
from api.problems import Problem, problem_document, unprocessable
from api.routes.timeline import accepted_document, final
from api.sources import refuse_unless_source
from sidecar.model.record import Place

KEY_LENGTH_MAX: Final = 255
BATCH_PATH: Final = "/v1/messages:batch"
IDS_NOTED_MAX: Final = 20  # of a batch, in its audit record
RETRY_LATER: Final = {"Retry-After": "1"}
REFUSALS: Final = (
    "ambiguous-source", "no-source", "unknown-source", "not-a-source", "no-policy", "target-not-allowed", "loop",
    "too-far", "in-the-past", "expired", "attempts-exhausted", "timeout", "bad-header", "bad-timestamp",
    "reserved-header", "too-many-headers", "too-large", "unknown-topic", "invalid-base64", "invalid-idempotency-key",
    "idempotency-key-reused", "request-in-progress", "idempotency-unavailable", "kafka-unavailable",
)  # fmt: skip

log = logging.getLogger("tickover.api")
router = APIRouter(tags=["messages"])


class PositionOut(BaseModel):
    """Where a record lies in its source."""

    topic: str
    partition: int
    offset: int


class AcceptedOut(BaseModel):
    """An accepted message; `due` is epoch milliseconds, `due_utc` RFC 3339."""

    id: str
    due: int
    due_utc: str | None
    position: PositionOut
    place: str


class SentOut(BaseModel):
    """Answer to one message of a batch: `status` as it would have been alone, and the accepted message or a problem."""

    status: int
    id: str | None = None
    due: int | None = None
    due_utc: str | None = None
    position: PositionOut | None = None
    place: str | None = None
    problem: dict[str, Any] | None = None


class BatchOut(BaseModel):
    """Answers to all messages of a batch, in their order."""

    items: list[SentOut]
    accepted: int
    refused: int


@router.post(
    "/v1/messages",
    status_code=202,
    responses={202: {"model": AcceptedOut}},
    **described("Send a delayed message", NewMessage, *REFUSALS, headers={202: ["Idempotency-Replayed"]}),
)
async def send_message(
    caller: Writer,
    body: JsonBody,
    ports: GivenPorts,
    trail: GivenTrail,
    past: Past = False,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Send a message that is emitted to its target when it is due; 202 once Kafka has acknowledged it.

    With an `Idempotency-Key` a request may be repeated for 24 hours on any replica and is done once.
    """
    message = validated(NewMessage, body)
    trail.note(id=message.id, source=message.source, target=message.target)
    if idempotency_key is None:
        accepted = await _send(ports, Asked(message, message.id or new_id(), past), ports.now_ms())
        trail.note(**accepted)
        return told(accepted)
    key = scoped(idempotency_key, caller.name)
    try:
        accepted, is_replayed = await send_once(ports, message, past, key, hashlib.sha256(body.canonical).digest())
        trail.note(**accepted)
        return told(accepted, is_replayed)
    except IdempotencyUnavailable:
        raise unavailable() from None


@router.post(
    BATCH_PATH,
    responses={200: {"model": BatchOut}},
    **described(
        "Send delayed messages", NewMessages, "invalid-idempotency-key", "idempotency-key-reused",
        "request-in-progress", "idempotency-unavailable",
        headers={200: ["Idempotency-Replayed"]},
    ),
)  # fmt: skip
async def send_messages(
    caller: Writer,
    body: JsonBody,
    ports: GivenPorts,
    trail: GivenTrail,
    past: Past = False,
    dry_run: Annotated[bool, Query(description="Send nothing, and say what would become of each")] = False,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Send up to 500 messages, in their order; each is accepted or refused by itself, as `POST /v1/messages` would.

    With an `Idempotency-Key` the request may be repeated with the same body, also where some were answered by 503: what
    was accepted is not sent twice. A dry run takes no key, and answers with `position: null`.
    """
    given = validated(Batch, body).messages
    trail.note(messages=len(given), dry_run=dry_run)
    try:
        if dry_run or idempotency_key is None:
            now_ms = ports.now_ms()
            answers, is_replayed = await _each(ports, given, [None] * len(given), (past, dry_run), now_ms), False
        else:
            key = scoped(idempotency_key, f"{caller.name}\nbatch")
            fingerprint = hashlib.sha256(body.canonical).digest()
            answers, is_replayed = await _each_once(ports, given, past, key, fingerprint)
    except IdempotencyUnavailable:
        raise unavailable() from None
    accepted = [answer["id"] for answer in answers if answer["status"] == ACCEPTED]
    trail.note(accepted=len(accepted), refused=len(answers) - len(accepted), ids=accepted[:IDS_NOTED_MAX])
    items = [accepted_document(answer) for answer in answers]
    told = {"items": items, "accepted": len(accepted), "refused": len(answers) - len(accepted)}
    return json_response(told, 200, {"Idempotency-Replayed": "true"} if is_replayed else {})


def unavailable() -> Problem:
    """503: nothing was sent."""
    detail = "The store of idempotency keys can't be reached; nothing was sent."
    return Problem(503, "idempotency-unavailable", detail, RETRY_LATER)


class Asked(NamedTuple):
    """Message that is asked for, its id, and whether a time in the past is meant."""

    message: NewMessage
    id: str
    past: bool


def scoped(key: str, scope: str) -> str:
    """The key of a caller, or of a caller and one kind of requests. Raises `Problem`."""
    if not key or len(key) > KEY_LENGTH_MAX or not key.isascii() or not key.isprintable():
        detail = f"An Idempotency-Key has 1 to {KEY_LENGTH_MAX} printable ASCII characters."
        raise unprocessable("invalid-idempotency-key", detail)
    return f"{scope}\n{key}"


def told(accepted: dict[str, object], is_replayed: bool = False) -> Response:
    """202 for a message that Kafka has."""
    return json_response(accepted_document(accepted), 202, {"Idempotency-Replayed": "true"} if is_replayed else {})


async def send_once(
    ports: Ports, message: NewMessage, past: bool, key: str, fingerprint: bytes, id: str = ""
) -> tuple[dict[str, object], bool]:
    """Accepted message, and whether a former request did it.

    If the request is cancelled in here, its lease runs out by itself: what Kafka got is unknown.
    """
    match await _begin(ports, key, fingerprint):
        case Answered(response):
            return dict(json.loads(response)), True
        case Fresh() as fresh:
            message_id = message.id or id or repeatable_id(key, fingerprint)
            if message.id is None and (left := _left_before(ports, message_id)) is not None:
                await _keep(ports, key, fresh, left)
                return left, True
            return await _answer(ports, Asked(message, message_id, past), fresh, key), False


async def _begin(ports: Ports, key: str, fingerprint: bytes) -> Fresh | Answered:
    """Whether the request is the first of its key. Raises `Problem`, and IdempotencyUnavailable."""
    match await ports.idempotency.begin(key, fingerprint, ports.now_ms()):
        case Mismatch():
            detail = "This Idempotency-Key was used for another body within the last 24 hours."
            raise unprocessable("idempotency-key-reused", detail)
        case Busy():
            detail = "A request with this Idempotency-Key is under way; ask again."
            raise Problem(409, "request-in-progress", detail, RETRY_LATER)
        case begun:
            return begun


def _left_before(ports: Ports, message_id: str) -> dict[str, object] | None:
    """Answer to a former try, if its key is gone with Redis and its message has left; None: not known.

    What is held still needs no look: a second record with the same key and id replaces it.
    """
    last = final(ports.receipts.settlements(message_id))
    return None if last is None else {"id": message_id, "due": last.due_ms, "position": last.place._asdict()}


async def _answer(ports: Ports, asked: Asked, fresh: Fresh, key: str) -> dict[str, object]:
    """Send, and keep the answer. Id and time are the same in every try."""
    accepted = await _send_or_let_go(ports, asked, fresh, key)
    await _keep(ports, key, fresh, accepted)
    return accepted


async def _keep(ports: Ports, key: str, fresh: Fresh, accepted: object) -> None:
    try:
        await ports.idempotency.finish(key, fresh.holder, json.dumps(accepted).encode())
    except IdempotencyUnavailable:
        # It is in Kafka, and that is what 202 says. A retry would send it again, with the same id and time.
        log.warning("the answer to an idempotent request could not be kept")


async def _send_or_let_go(ports: Ports, asked: Asked, fresh: Fresh, key: str) -> dict[str, object]:
    """Send; on a failure make way for the retry that will follow."""
    try:
        return await _send(ports, asked, fresh.timestamp_ms)
    except Problem as problem:
        let_go = ports.idempotency.release if problem.status == 503 else ports.idempotency.forget
        try:
            await let_go(key, fresh.holder)
        except IdempotencyUnavailable:
            log.warning("the lease of an idempotent request could not be given back; it runs out by itself")
        raise


class Ready(NamedTuple):
    """A message as it will be sent, and when it will be due as far as that is known before."""

    record: Outgoing
    drafted: Draft
    planned_ms: int


async def _send(ports: Ports, asked: Asked, timestamp_ms: int) -> dict[str, object]:
    """Raises `Problem`."""
    return await _sent(ports, await _made_ready(ports, asked, timestamp_ms))


async def _made_ready(ports: Ports, asked: Asked, timestamp_ms: int) -> Ready:
    """All of it but the sending. Raises `Problem`."""
    message, message_id, past = asked
    refuse_past(message.deliver_at, timestamp_ms, past)
    drafted = draft(message, message_id, ports.limits)
    table, reserved = ports.policies.table, ports.sources.reserved
    source = message.source or source_of(message.target, table)
    try:
        partitions = await ports.sender.partition_count(source)
        if partitions is None:
            raise unprocessable("unknown-source", f"The source topic {source} does not exist.")
        await refuse_unless_source(ports, source)
        record = drafted.record(source, partitions, timestamp_ms)
    except SenderUnavailable as error:
        raise _unanswered(error) from None
    planned_ms = drafted.due_ms(Acknowledged(source, record.partition, 0, timestamp_ms), table, reserved)
    return Ready(record, drafted, planned_ms)


def _unanswered(error: SenderUnavailable) -> Problem:
    detail = f"Kafka did not acknowledge the record: {error}. It may or may not have it."
    return Problem(503, "kafka-unavailable", detail, RETRY_LATER)


async def _sent(ports: Ports, ready: Ready) -> dict[str, object]:
    """Accepted message. Raises `Problem`."""
    try:
        at = await ports.sender.send(ready.record)
    except SenderRefused as error:
        detail = f"Kafka refused the record: {error}."
        type = error.reason.replace("_", "-")
        raise unprocessable(type, detail, reason=error.reason) from None
    except SenderUnavailable as error:
        raise _unanswered(error) from None
    try:  # again, as the engine will see it: jitter depends on the offset, and a topic may set its own time
        due_ms = ready.drafted.due_ms(at, ports.policies.table, ports.sources.reserved)
    except Problem:
        due_ms = ready.planned_ms
    return {"id": ready.drafted.id, "due": due_ms, "position": Place(*at[:3])._asdict()}


# --- many ---------------------------------------------------------------------------------------------------------

ACCEPTED: Final = 202
Answers = list[dict[str, Any]]


async def _each_once(
    ports: Ports, given: Sequence[Any], past: bool, key: str, fingerprint: bytes
) -> tuple[Answers, bool]:
    """Answers to all, and whether a former request did them."""
    match await _begin(ports, key, fingerprint):
        case Answered(response):
            first: Answers = json.loads(response)
            return first, True
        case Fresh() as fresh:
            ids = [repeatable_id(key, fingerprint + number.to_bytes(2)) for number in range(len(given))]
            answers = await _each(ports, given, ids, (past, False), fresh.timestamp_ms)
            statuses = {answer["status"] for answer in answers}
            try:
                if 503 in statuses:
                    await ports.idempotency.release(key, fresh.holder)
                elif ACCEPTED not in statuses:
                    await ports.idempotency.forget(key, fresh.holder)
                else:
                    await _keep(ports, key, fresh, answers)
            except IdempotencyUnavailable:
                log.warning("the lease of an idempotent request could not be given back; it runs out by itself")
            return answers, False


async def _each(
    ports: Ports, given: Sequence[Any], ids: Sequence[str | None], how: tuple[bool, bool], timestamp_ms: int
) -> Answers:
    """Answers to all: made ready one by one, then sent in this order and waited for together. `ids`: of those that
    have none; what of these has left before is not sent again. `how`: whether a past is meant, and a dry run.
    """
    past, is_dry = how
    made = []
    for one, id in zip(given, ids, strict=True):
        made.append(await _one_ready(ports, one, (id, past), timestamp_ms))
        await asyncio.sleep(0)  # others are served meanwhile
    if is_dry:
        return [_foreseen(one) if isinstance(one, Ready) else one for one in made]
    return list(await asyncio.gather(*(_one_sent(ports, one) for one in made)))


async def _one_ready(
    ports: Ports, given: Any, how: tuple[str | None, bool], timestamp_ms: int
) -> Ready | dict[str, Any]:
    """A message made ready, or its answer."""
    derived, past = how
    try:
        message = validated(NewMessage, Body(given, b""))
        if message.id is None and derived is not None and (left := _left_before(ports, derived)) is not None:
            return {"status": ACCEPTED, **left}
        return await _made_ready(ports, Asked(message, message.id or derived or new_id(), past), timestamp_ms)
    except Problem as problem:
        id = given.get("id") if isinstance(given, dict) else None
        return _refused(problem, id if isinstance(id, str) else None)


async def _one_sent(ports: Ports, one: Ready | dict[str, Any]) -> dict[str, Any]:
    if not isinstance(one, Ready):
        return one
    try:
        return {"status": ACCEPTED, **await _sent(ports, one)}
    except Problem as problem:
        return _refused(problem, one.drafted.id)


def _foreseen(one: Ready) -> dict[str, Any]:
    return {"status": ACCEPTED, "id": one.drafted.id, "due": one.planned_ms, "position": None}


def _refused(problem: Problem, id: str | None) -> dict[str, Any]:
    return {"status": problem.status, "id": id, "problem": problem_document(problem, BATCH_PATH)}
