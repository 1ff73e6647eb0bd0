"""`POST /v1/messages`: a delayed message without a Kafka client. Accepted means acknowledged by Kafka."""

import hashlib
import json
import logging
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Header
from pydantic import BaseModel
from starlette.responses import Response

from api.access.auth import Caller
from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Writer, json_response
from api.message import NewMessage, Past, draft, new_id, refuse_past, repeatable_id, source_of
from api.openapi.description import described
from api.ports import (
    Acknowledged,
    Answered,
    Busy,
    Fresh,
    IdempotencyUnavailable,
    Mismatch,
    Ports,
    SenderRefused,
    SenderUnavailable,
)
from api.problems import Problem, unprocessable
from api.routes.timeline import final
from api.sources import refuse_unless_source
from sidecar.model.times import with_times

KEY_LENGTH_MAX: Final = 255
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


@router.post(
    "/v1/messages",
    status_code=202,
    responses={202: {"model": AcceptedOut}},
    **described("Send a delayed message", NewMessage, *REFUSALS),
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
        return _told(accepted)
    key = _scoped(idempotency_key, caller)
    try:
        accepted, is_replayed = await _send_once(ports, message, past, key, hashlib.sha256(body.canonical).digest())
        trail.note(**accepted)
        return _told(accepted, is_replayed)
    except IdempotencyUnavailable:
        detail = "The store of idempotency keys can't be reached; nothing was sent."
        raise Problem(503, "idempotency-unavailable", detail, RETRY_LATER) from None


class Asked(NamedTuple):
    """Message that is asked for, its id, and whether a time in the past is meant."""

    message: NewMessage
    id: str
    past: bool


def _scoped(key: str, caller: Caller) -> str:
    if not key or len(key) > KEY_LENGTH_MAX or not key.isascii() or not key.isprintable():
        detail = f"An Idempotency-Key has 1 to {KEY_LENGTH_MAX} printable ASCII characters."
        raise unprocessable("invalid-idempotency-key", detail)
    return f"{caller.name}\n{key}"


def _told(accepted: dict[str, object], is_replayed: bool = False) -> Response:
    return json_response(with_times(accepted, "due"), 202, {"Idempotency-Replayed": "true"} if is_replayed else {})


async def _send_once(
    ports: Ports, message: NewMessage, past: bool, key: str, fingerprint: bytes
) -> tuple[dict[str, object], bool]:
    """Accepted message, and whether a former request did it.

    If the request is cancelled in here, its lease runs out by itself: what Kafka got is unknown.
    """
    match await ports.idempotency.begin(key, fingerprint, ports.now_ms()):
        case Answered(response):
            first: dict[str, object] = json.loads(response)
            return first, True
        case Mismatch():
            detail = "This Idempotency-Key was used for another body within the last 24 hours."
            raise unprocessable("idempotency-key-reused", detail)
        case Busy():
            detail = "A request with this Idempotency-Key is under way; ask again."
            raise Problem(409, "request-in-progress", detail, RETRY_LATER)
        case Fresh() as fresh:
            message_id = message.id or repeatable_id(key, fingerprint)
            if message.id is None and (left := _left_before(ports, message_id)) is not None:
                await _keep(ports, key, fresh, left)
                return left, True
            return await _answer(ports, Asked(message, message_id, past), fresh, key), False


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


async def _keep(ports: Ports, key: str, fresh: Fresh, accepted: dict[str, object]) -> None:
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


async def _send(ports: Ports, asked: Asked, timestamp_ms: int) -> dict[str, object]:
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
        planned_ms = drafted.due_ms(Acknowledged(source, record.partition, 0, timestamp_ms), table, reserved)
        at = await ports.sender.send(record)
    except SenderRefused as error:
        detail = f"Kafka refused the record: {error}."
        type = error.reason.replace("_", "-")
        raise unprocessable(type, detail, reason=error.reason) from None
    except SenderUnavailable as error:
        detail = f"Kafka did not acknowledge the record: {error}. It may or may not have it."
        raise Problem(503, "kafka-unavailable", detail, RETRY_LATER) from None
    try:  # again, as the engine will see it: jitter depends on the offset, and a topic may set its own time
        due_ms = drafted.due_ms(at, table, reserved)
    except Problem:
        due_ms = planned_ms
    position = {"topic": at.topic, "partition": at.partition, "offset": at.offset}
    return {"id": message_id, "due": due_ms, "position": position}
