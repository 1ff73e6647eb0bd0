"""Examples of answers for the API's description: what a world of fakes answers to the first call of each kind."""

import json
from typing import Any, Final

from api.access.auth import Role
from sidecar.model.version import VERSION
from tests.unit.api.access.role_world import CALLS, MARKS, ask

# They describe, or are a text, events or a schema of hundreds of lines.
LEFT_OUT: Final = (
    "GET /",
    "GET /docs",
    "GET /docs/redoc.js",
    "GET /metrics",
    "GET /openapi.json",
    "GET /v1/events",
    "GET /v1/schemas/policy",
)
EXAMPLE_VERSION: Final = "1.0.0"  # else a release would change the page
ITEMS_MAX: Final = 2  # of a list: an example, no catalogue
# What the world calls things so that they are found again, and what they are for a reader.
WORDS: Final = {
    "key": "customer-42",
    "value": "hello",
    "header name": "trace",
    "header value": "7f3a",
    "key prefix": "customer-",
    "error text": "payment refused",
    "address in an error": "payments.internal",
    "idempotency key": "order-4711",
}
# Made anew in each run, or told by a thread that may have come further: fixed, so that the page stays as it is.
FIXED: Final = {"token": "8b3831be54101073", "fingerprint": "d451dd110ccc2c9e", "updated": 1_800_000_000_000}
JOB_ID: Final = "180494b11468"
STARTED: Final = ("/v1/changes/{id}", "/v1/redrives/{id}")
STATES: Final = {"abort": "aborted", "canary": "canary", "run": "running"}


def page() -> str:
    """JSON: an answer by call and status."""
    found = {name: example(name) for name in CALLS if name not in LEFT_OUT}
    return json.dumps({name: answer for name, answer in found.items() if answer}, indent=1) + "\n"


def example(name: str) -> dict[str, Any]:
    """The answer to an admin, by its status; none where it has no body."""
    path, _, last = name.partition(" ")[2].rpartition("/")
    if (
        path in STARTED and last in STATES
    ):  # a job that was started is told of while it goes on: its plan is, and its state is put in
        plan = f"GET {path}"
        return {"202": {**answer(plan)[1], "state": STATES[last]}}
    status, told = answer(name)
    if told is None:
        return {}
    if name.startswith("PUT"):
        return {"200": told, "201": told}
    if "control" in told:  # an action, whose receipt may not come in time
        return {"200": told, "202": {**told, "outcome": "pending"}}
    return {str(status): told}


def answer(name: str) -> tuple[int, Any]:
    """Status and document of the first call of this kind; None for no document."""
    told = ask(name, CALLS[name][0], Role.ADMIN)
    text = told.body
    text = text.replace(f'"{VERSION}"', f'"{EXAMPLE_VERSION}"')
    for kind, word in WORDS.items():
        text = text.replace(MARKS[kind], word)
    return told.status, fixed(json.loads(text)) if text else None


def fixed(value: Any) -> Any:
    """The answer with short lists, and with the same words in each run."""
    if isinstance(value, list):
        return [fixed(one) for one in value[:ITEMS_MAX]]
    if not isinstance(value, dict):
        return value
    known = FIXED | ({"id": JOB_ID} if "limits" in value else {})
    return {name: known[name] if name in known and one is not None else fixed(one) for name, one in value.items()}
