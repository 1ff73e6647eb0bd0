"""The quarantine over REST: what could not be decided and why, and sending it to its source again, corrected.

The quarantine is read as topics of dead letters are, of which it is one.
"""

from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.body import validated
from api.dependencies import GivenPorts, GivenTrail, JsonBody, Reader, Writer, json_response
from api.message import Content, HeaderName, bytes_of, data_of, too_many_headers
from api.openapi.description import described
from api.ports import Ports, SenderUnavailable
from api.problems import Problem, unprocessable
from api.routes.dead_letters import REFUSALS, LettersQuery, answered, get_dead_letter, list_dead_letters
from api.routes.dead_letters import Filter as LettersFilter
from api.routes.jobs import told
from api.sources import decision_of, refuse_unless_source
from policies.decision import UNKNOWN_TARGET, Act, Facts, Hold, Quarantine
from policies.headers import CONTROL_PREFIX, COUNTED, FAILURE, ID, INSTRUCTIONS, OFFSET_MAX, SOURCE
from sidecar.model.header_codec import split
from sidecar.model.record import Headers, Place, with_places
from sidecar.model.times import with_times
from sidecar.operations.dead_letters.browse import Shown
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.redrive_routing import is_quarantined
from sidecar.operations.dead_letters.resending import SENT, corrected_headers, plan_id
from sidecar.operations.jobs.transactional_sender import ANY_PARTITION, OutgoingRecord

READ_HEADERS: Final = INSTRUCTIONS | FAILURE | COUNTED | {ID}  # of tickover's, those that users write
WITHOUT_MAX: Final = 1_000
router = APIRouter(tags=["dead letters"])

Partition = Annotated[int, Field(ge=0, lt=1 << 31)]
Offset = Annotated[int, Field(ge=0, le=OFFSET_MAX)]


class Filter(LettersQuery):
    """Parameters of the query."""

    open: Annotated[bool, Field(description="Without those that were sent again")] = False


class Correction(BaseModel):
    """Parts of a quarantined record that are sent otherwise than they lie there. All else stays, byte for byte."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"examples": [{"headers": {"tickover-delay": "10m"}, "without": ["tickover-target"]}]},
    )
    headers: list[tuple[HeaderName, Content]] | dict[HeaderName, Content] = Field(
        default_factory=list, description="Take the place of all headers of their names"
    )
    without: list[HeaderName] = Field(
        default_factory=list, max_length=WITHOUT_MAX, description="Names of headers that are left out"
    )
    key: Content = Field(default=None, description="Left out: as it is; null: none")
    value: Content = Field(default=None, description="Left out: as it is; null: none")


@router.get("/v1/quarantine", **described("List quarantined records", None, *REFUSALS))
async def list_quarantine(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, query: Annotated[Filter, Query()]
) -> Response:
    """Records of the quarantine in order of partition and offset, as dead letters are listed: `reason` and `detail` say
    why each is there, `source` where it came from, `target` where it would go again.
    """
    topic = ports.letters.rules.quarantine
    return await list_dead_letters(caller, ports, trail, LettersFilter(topic=[topic], **query.model_dump()))


@router.get(
    "/v1/quarantine/{partition}/{offset}",
    **described("Show a quarantined record", None, "dead-letter-not-found", *REFUSALS),
)
async def get_quarantined(
    caller: Reader, ports: GivenPorts, trail: GivenTrail, partition: Partition, offset: Offset, payload: bool = False
) -> Response:
    """One record by its place in the quarantine. `redriven` says that it was sent again, and where it came back to."""
    topic = ports.letters.rules.quarantine
    return await get_dead_letter(caller, ports, trail, topic, partition, offset, payload)


@router.post(
    "/v1/quarantine/{partition}/{offset}/send",
    status_code=202,
    **described(
        "Send a quarantined record again, corrected", Correction, "dead-letter-not-found", "not-sendable",
        "already-sent", "letters-busy", "target-gone", "request-in-progress", "unknown-source", "not-a-source",
        "unknown-target", "reserved-header", "too-many-headers", "too-large", "no-policy", "target-not-allowed", "loop",
        "too-far", "expired", "attempts-exhausted", "not-retryable", "timeout", "bad-header", "bad-timestamp",
        "invalid-base64", "transactions-unsupported", *REFUSALS,
    ),
)  # fmt: skip
async def send_quarantined(
    caller: Writer, body: JsonBody, ports: GivenPorts, trail: GivenTrail, partition: Partition, offset: Offset
) -> Response:
    """Send a record to the source that it came from, with what is given here in place of what was wrong.

    It is decided anew, and its delay counts from now. What would be quarantined again is refused. It is sent once: a
    record that was sent, by this call or a redrive, is 409 `already-sent`, so that the call may be repeated.
    """
    asked = validated(Correction, body)
    place = Place(ports.letters.rules.quarantine, partition, offset)
    given = bytes_of(asked.headers, ports.limits)
    names = {name for name, _ in given} | set(asked.without)
    # Names of the user's headers are theirs, as a payload is: of these only the count is recorded.
    trail.note(
        position=str(place),
        controls=", ".join(sorted(names & READ_HEADERS)),
        other_headers=len(names - READ_HEADERS),
        content=", ".join(sorted(asked.model_fields_set & {"key", "value"})),
    )
    _refuse_written(names)
    letter, source = await _sendable(ports, place, has_value=asked.value is not None)
    headers = corrected_headers(letter, given, asked.without)
    record = await _record(ports, letter, source, asked, headers)
    fate = await _fate(ports, record)
    trail.note(source=record.target)
    await told(lambda: ports.resending.send(letter, record))
    answer = {"position": str(place), "source": source.topic, **fate._asdict(), "plan": plan_id(place)}
    return json_response(with_places(with_times(answer, "due"), "position"), 202)


def _refuse_written(names: set[str]) -> None:
    """Raises `Problem` (422)."""
    if any(name.startswith(CONTROL_PREFIX) for name in names - READ_HEADERS):
        known = ", ".join(sorted(READ_HEADERS))
        raise unprocessable("reserved-header", f"Of headers {CONTROL_PREFIX}* these can be given: {known}.")


async def _sendable(ports: Ports, place: Place, has_value: bool) -> tuple[DeadLetter, Place]:
    """The record, and where it came from. Raises `Problem`."""

    def look(shown: Shown) -> Shown:
        return shown

    shown = await answered(ports.letters.one(place, look))
    if shown is None:
        raise Problem(404, "dead-letter-not-found", "There is no record at this place, or none any more.")
    letter = shown.letter
    source = Place.of_text(letter.text(SOURCE)) if is_quarantined(letter) else None
    if shown.sent is not None:
        raise Problem(409, "already-sent", SENT.format(plan=shown.sent.plan))
    if letter.headers is None:
        raise Problem(409, "not-sendable", "The names of its headers are not UTF-8: they can't be sent as they are.")
    if source is None:
        raise Problem(409, "not-sendable", "Its headers don't say from which source it came.")
    if letter.is_by_reference and not has_value:
        detail = f"It has left its value behind, which was too large. Read it at {source}, and give a smaller one."
        raise Problem(409, "not-sendable", detail)
    return letter, source


async def _record(
    ports: Ports, letter: DeadLetter, source: Place, asked: Correction, headers: Headers
) -> OutgoingRecord:
    """The record for the source. Without a key it goes to the partition that it came from, which has those of its id.
    Raises `Problem`.
    """
    given = asked.model_fields_set
    key = data_of(asked.key) if "key" in given else letter.key
    value = data_of(asked.value) if "value" in given else letter.value
    if len(headers) > ports.limits.headers:
        raise too_many_headers(f"more than {ports.limits.headers} headers")
    if sum(len(name.encode()) + len(value or b"") for name, value in headers) > ports.limits.header_bytes:
        raise too_many_headers(f"more than {ports.limits.header_bytes} bytes of headers")
    partitions = await _partitions(ports, source.topic)
    if partitions is None:
        raise unprocessable("unknown-source", f"The source topic {source.topic} does not exist any more.")
    await refuse_unless_source(ports, source.topic)
    stays = key is None and source.partition < partitions
    return OutgoingRecord(source.topic, key, value, headers, source.partition if stays else ANY_PARTITION)


class Fate(NamedTuple):
    """Due time (epoch ms), target and policy of a record that is decided now; a control record has only the last."""

    due: int | None
    target: str | None
    policy: str


async def _fate(ports: Ports, record: OutgoingRecord) -> Fate:
    """Decide as the engine will, but for what depends on the offset. Raises `Problem` when it would not be emitted."""
    headers = split(record.headers)
    facts = Facts(record.target, max(record.partition, 0), 0, ports.now_ms(), headers.user, headers.controls)
    match decision_of(facts, ports.policies.table, ports.sources.reserved):
        case Act(policy=policy):
            return Fate(None, None, policy)
        case Hold(due_ms=due_ms, target=target, policy=policy):
            if await _partitions(ports, target) is None:
                detail = f"The record would be quarantined again: there is no topic {target}."
                raise unprocessable("unknown-target", detail, reason=UNKNOWN_TARGET)
            return Fate(due_ms, target, policy)
        case Quarantine(reason, detail):
            raise unprocessable(
                reason.replace("_", "-"), f"The record would be quarantined again: {detail}.", reason=reason
            )
        case dead:
            detail = f"The record would be dead-lettered: policy {dead.policy}."
            raise unprocessable(dead.reason.replace("_", "-"), detail, reason=dead.reason)


async def _partitions(ports: Ports, topic: str) -> int | None:
    try:
        return await ports.sender.partition_count(topic)
    except SenderUnavailable as error:
        detail = f"Kafka does not answer: {error}. Nothing was sent."
        raise Problem(503, "kafka-unavailable", detail, {"Retry-After": "1"}) from None
