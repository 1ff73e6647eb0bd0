"""The audit topic over REST, the newest record first: who did what and how it ended, refusals included.

A page reads backwards, in pieces, until it has enough, has looked at as many records as it may, or its time is up. Its
cursor is the place to go on from.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from api.dependencies import Admin, GivenPorts, json_response
from api.openapi.description import described
from api.pagination import PAGE_DEFAULT, Cursor, Limit, decode, encode, unknown_cursor
from api.routes.dead_letters import answered
from policies.glob import compile_globs
from sidecar.model.times import AskedTime, with_times
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.dead_letter_log import LetterLog

PARTITION: Final = 0  # the only one that is written
PIECE: Final = 500  # records that are read at once
SCANNED_MAX: Final = 10_000  # records that one page looks at
SECONDS_MAX: Final = 5.0
CLOCKS_MS: Final = 60_000  # how far the clocks of replicas may be apart: records are in order but for so much
OFFSET_DIGITS_MAX: Final = 19
WORD_LENGTH_MAX: Final = 256

router = APIRouter(tags=["process"])
Word = Annotated[str, Field(min_length=1, max_length=WORD_LENGTH_MAX)]


class Filter(BaseModel):
    """Parameters of the query: records fit that are as all of them say."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    caller: Word | None = Field(default=None, description="The name of who asked for it")
    action: Word | None = Field(default=None, description="What was asked for, as a glob: `put_policy`, `*_redrive`")
    outcome: Literal["done", "refused", "failed", "unknown"] | None = Field(
        default=None, description="How it ended; unknown: the process was stopped meanwhile"
    )
    since: AskedTime | None = Field(default=None, description="At or after this time: epoch ms, or RFC 3339")
    until: AskedTime | None = Field(default=None, description="Before this time: epoch ms, or RFC 3339")
    limit: Limit = PAGE_DEFAULT
    cursor: Cursor = None

    def fits(self, record: dict[str, Any]) -> bool:
        """Whether a record is as all of it says."""
        actions = compile_globs((self.action,)) if self.action else None
        return (
            (self.caller is None or record.get("actor") == self.caller)
            and (self.outcome is None or record.get("outcome") == self.outcome)
            and (actions is None or actions.matches(str(record.get("action"))))
            and (self.since is None or record["time"] >= self.since)
            and (self.until is None or record["time"] < self.until)
        )


@router.get("/v1/audit", **described("List who did what", None, "scans-busy", "kafka-unavailable"))
async def list_audit(caller: Admin, ports: GivenPorts, query: Annotated[Filter, Query()]) -> Response:
    """Records of the audit topic, the newest first; `remaining` is how many are still to be read.

    It has what needs more than the role read, what showed a payload, and callers who were not let in. Reading it is
    recorded, too.
    """
    end = None if query.cursor is None else _offset(query.cursor)
    return json_response(await answered(ports.letters.ask(partial(_page, ports.audit_topic, query, end))))


def _page(topic: str, query: Filter, end: int | None, log: LetterLog) -> dict[str, Any]:
    """Blocks. Raises LettersUnavailable."""
    low, high = log.bounds(topic, PARTITION)
    if end is None and query.until is not None:
        end = log.offset_at(topic, PARTITION, query.until + CLOCKS_MS)
    position = high if end is None else min(end, high)
    deadline_s, scanned = time.monotonic() + SECONDS_MAX, 0
    items: list[dict[str, Any]] = []
    for found in _backwards(log, topic, low, position):
        scanned += 1
        position = found.place.offset
        record = _record(found)
        if record is not None and query.fits(record):
            items.append(record)
        if query.since is not None and found.timestamp_ms < query.since - CLOCKS_MS:
            position = low
        if len(items) == query.limit or scanned == SCANNED_MAX or position == low or time.monotonic() > deadline_s:
            break
    else:
        position = low  # in front of the last record there is nothing but gaps
    left = max(position - low, 0)
    return {"items": items, "next": encode(str(position)) if left else None, "scanned": scanned, "remaining": left}


def _backwards(log: LetterLog, topic: str, low: int, end: int) -> Iterator[DeadLetter]:
    """Records from before `end` to `low`."""
    while end > low:
        begin = max(low, end - PIECE)
        yield from reversed([record for batch in log.read(topic, PARTITION, begin, end) for record in batch])
        end = begin


def _record(found: DeadLetter) -> dict[str, Any] | None:
    """The record as REST shows it; None: tickover has not written it."""
    try:
        record = json.loads(found.value or b"")
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("time"), int):
        return None
    return {"position": str(found.place), "place": str(found.place), **with_times(record, "time")}


def _offset(cursor: str) -> int:
    text = decode(cursor)
    if not (text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX):
        raise unknown_cursor()
    return int(text)
