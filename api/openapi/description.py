"""Words of the OpenAPI document on an operation, beside its docstring: summary, body with an example, refusals.

    @router.post("/v1/changes", **described("Plan a change", NewChange, "change-too-large"))

A refusal is named by its problem type. Those that follow from the route's role, its body and its parameters are
added by `refusals`, and named by no route. Tests compare both with what the API answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from api.dependencies import IDEMPOTENCY_KEY, SAFE_METHODS, Access

SCHEMA_PLACE: Final = "#/components/schemas/{model}"
REFUSES: Final = "x-refuses"  # from the route to the document, where responses take its place
ANSWER_HEADERS: Final = "x-answer-headers"  # the same

_BY_STATUS: Final = {
    400: "malformed-json",
    401: "unauthorized",
    403: "approver-unknown client-header-needed forbidden host-not-allowed origin-not-allowed own-plan",
    404: "breaker-not-found change-not-found dead-letter-not-found pause-not-found policy-not-found redrive-not-found "
    "schedule-not-found topic-not-found unknown-message version-not-found not-found",
    409: "approval-needed change-active change-ended file-managed held-in-several-places holds-messages letters-busy "
    "letters-gone nothing-to-change nothing-to-redrive plan-expired redrive-active redrive-ended request-in-progress "
    "schedule-of-newer-version schedule-unreadable stale-token target-gone too-late too-many-changes too-many-groups "
    "too-many-pauses too-many-policies already-sent not-sendable too-many-redrives too-many-schedules",
    412: "precondition-failed",
    413: "body-too-large",
    415: "unsupported-encoding unsupported-media-type",
    422: "ambiguous-source attempts-exhausted bad-header bad-timestamp change-too-large confirmation-needed "
    "cron-step-too-large duplicate-key expired globs-too-long idempotency-key-not-supported idempotency-key-reused "
    "in-the-past invalid-base64 invalid-body invalid-cursor invalid-edit invalid-id invalid-idempotency-key "
    "invalid-number invalid-parameter invalid-precondition invalid-range invalid-text loop masked-content name-differs "
    "no-policy no-source not-a-source policy-too-large redrive-loop redrive-too-large reserved-header reserved-topic "
    "rewind-not-back schedule-too-large target-not-allowed timeout too-deep too-far too-large too-many-headers "
    "too-many-values not-retryable unknown-parameter unknown-source unknown-target unknown-topic version-is-deletion",
    428: "precondition-required",
    429: "rate-limited",
    503: "audit-unavailable changes-busy explain-busy idempotency-unavailable kafka-unavailable keys-unavailable "
    "look-up-incomplete look-up-unavailable not-alive not-ready pauses-unavailable policies-unavailable redrives-busy "
    "scans-busy schedules-unavailable too-many-streams transactions-unsupported",
}
STATUS_OF: Final = {name: status for status, names in _BY_STATUS.items() for name in names.split()}

OF_CALLERS: Final = (
    "unauthorized", "forbidden", "host-not-allowed", "origin-not-allowed", "rate-limited", "keys-unavailable",
)  # fmt: skip
OF_BODIES: Final = (
    "malformed-json", "body-too-large", "unsupported-media-type", "unsupported-encoding", "invalid-body",
    "invalid-text", "invalid-number", "duplicate-key", "too-deep", "too-many-values",
)  # fmt: skip
OF_QUERIES: Final = ("unknown-parameter",)
LOOK_UP: Final = ("look-up-incomplete", "look-up-unavailable")
SHOW_MORE: Final = frozenset({"payload", "key_prefix", "header"})  # with them a role more is needed, and a record of it
HEADERS: Final[Mapping[str, str]] = {
    "ETag": "What is shown or was written, in this version: for `If-Match`, and `If-None-Match` of a GET",
    "Idempotency-Replayed": "`true`: a former request with this Idempotency-Key did it",
    "Location": "Path of what was made or asked for",
    "Retry-After": "So many seconds later it may be asked again",
    "Tickover-Managed-By": "Who may change the policy: `api` or `file`",
    "WWW-Authenticate": "How to authenticate (RFC 6750)",
    "X-Request-Id": "Name of the request, as it was given or made here",
}
ALWAYS: Final = "X-Request-Id"
OF_REFUSALS: Final[Mapping[int, Sequence[str]]] = {
    401: ("WWW-Authenticate",), 409: ("Retry-After",), 412: ("ETag",), 429: ("Retry-After",), 503: ("Retry-After",),
}  # fmt: skip
PARAMETERS: Final[Mapping[str, str]] = {
    "cursor": "`next` of the page before; left out: the first page",
    "count": "Count what is listed, too, where that needs no search",
    "due_from": "Due at or after this time",
    "due_to": "Due before this time",
    "error": "A part of what the letter died of",
    "event": "Events of this name; left out: of all",
    "error_class": "The class of the failure, as a glob",
    "follow": "False: end when all that has changed is told",
    "id": "The id, as it was given or answered",
    "if-none-match": "ETags that are known already, or *: 304 where what there is has one of them",
    "idempotency-key": "1 to 255 printable characters that name this request, so that it may be repeated",
    "kind": "`policy`, `schedule`, `source` or `target`",
    "last-event-id": "Id of the last event that was heard; left out: begin with `reset`",
    "limit": "At most so many items",
    "minutes": "So many minutes from now on",
    "name": "The name",
    "offset": "The offset of the letter",
    "partition": "The partition",
    "past": "A time more than a minute in the past is meant: it is due at once",
    "payload": "Show key, value and headers, masked; needs the role write",
    "policy": "The policy that decided, as name or `name@version`",
    "since": "Written at or after this time: RFC 3339, or epoch milliseconds",
    "source": "The delay or retry topic; left out: all",
    "target": "The topic that it goes to",
    "topic": "The topic",
    "header": "A header, as `name=value`; needs the role write, and is recorded",
    "fingerprint": "Of the failure, as a group shows it",
    "reason": "Why it is a dead letter",
    "until": "Written before this time: RFC 3339, or epoch milliseconds",
}


def described(
    summary: str,
    body: type[BaseModel] | None = None,
    *refuses: str,
    headers: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Arguments of a route's decorator. `body`: the model of a body that the route parses itself; its first example is
    the operation's. `refuses`: problem types. `headers`: those of `HEADERS` that an answer has, by its status."""
    told = {str(status): list(names) for status, names in headers.items()}
    extra: dict[str, Any] = {REFUSES: refuses, ANSWER_HEADERS: told}
    if body is not None:
        schema = {"$ref": SCHEMA_PLACE.format(model=body.__name__)}
        content = {"application/json": {"schema": schema, "example": example_of(body)}}
        extra["requestBody"] = {"required": True, "content": content}
    return {"summary": summary, "openapi_extra": extra}


def example_of(body: type[BaseModel]) -> Any:
    """The model's first example. Raises KeyError where it has none."""
    extra: Any = body.model_config["json_schema_extra"]
    return extra["examples"][0]


def refusals(method: str, operation: Mapping[str, Any], access: Access) -> dict[int, list[str]]:
    """Problem types of an operation by status: the route's own, and those of its role, its body and its parameters."""
    names = sorted({*operation.get(REFUSES, ()), *_following(method, operation, access)})
    statuses = sorted({STATUS_OF[name] for name in names})
    return {status: [name for name in names if STATUS_OF[name] == status] for status in statuses}


def _following(method: str, operation: Mapping[str, Any], access: Access) -> Iterator[str]:
    parameters = operation.get("parameters", [])
    yield from OF_QUERIES
    if access.role is not None:
        yield from OF_CALLERS
        named = {one["name"] for one in parameters}
        if access.name in ("write", "admin") or named & SHOW_MORE:
            yield from ("client-header-needed", "audit-unavailable")
        if method.upper() not in SAFE_METHODS and IDEMPOTENCY_KEY not in named:
            yield "idempotency-key-not-supported"
    if "requestBody" in operation:
        yield from OF_BODIES
    if any(one["in"] == "query" or one["schema"].get("type") != "string" for one in parameters):
        yield "invalid-parameter"
    if any(one["name"] == "cursor" for one in parameters):
        yield "invalid-cursor"
