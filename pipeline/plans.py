"""What the sidecar's own redrives have planned: letters that a job must leave to them, or both would send them.

Their topic (one partition) has JSON under the keys `<plan id>/plan`, `/progress` and `/abort`; a key's last one counts.
A plan that may still run has all letters between its pinned ends, also while it is being aborted: whoever works on it
may be sending some. One that is done or was aborted has those that it has looked at: whether each was sent or passed
over, only its filter knows.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from confluent_kafka import IsolationLevel

from pipeline.errors import PipelineError
from pipeline.kafka_source import OffsetRange, read_range
from pipeline.topics import bounds

TAKEN: Final = "plan string, topic string, partition int, `start` bigint, `end` bigint"
OVER: Final = ("done", "aborted")
WORKED_ON: Final = ("planning", "canary", "running")


class Taken(NamedTuple):
    """Offsets of a dead-letter topic that are a plan's, `end` not included."""

    plan: str
    topic: str
    partition: int
    start: int
    end: int


def read_plans(client: Mapping[str, str], topic: str) -> list[Taken]:
    """What the plans in this topic have, as of now: also those behind what is still open. Raises PipelineError."""
    try:
        starts, ends = bounds(client, topic, IsolationLevel.READ_UNCOMMITTED)
    except PipelineError as error:
        words = (
            "name the topic of the sidecar's redrives by --redrives, or say `--redrives none` where there is no sidecar"
        )
        raise PipelineError(f"{error}; {words}") from error
    ranges = [OffsetRange(topic, int(name), starts[name], end) for name, end in ends.items() if end > starts[name]]
    batches = (batch for part in ranges for batch in read_range(dict(client), part))
    rows = (row for batch in batches for row in batch.select(["key", "value"]).to_pylist())
    try:
        return taken((row["key"], row["value"]) for row in rows)
    except TimeoutError as error:
        raise PipelineError(f"{error}; a transaction is open there, `tickover doctor` names it: try again") from error


def taken(records: Iterable[tuple[bytes | None, bytes | None]]) -> list[Taken]:
    """What plans have, by the (key, value) of their topic. Raises PipelineError for what this version can't read."""
    last: dict[str, dict[str, bytes | None]] = {}
    for key, value in records:
        plan_id, _, kind = (key or b"").decode(errors="replace").rpartition("/")
        if kind in ("plan", "progress", "abort"):
            last.setdefault(plan_id, {})[kind] = value
    return [one for plan_id, said in last.items() for one in _spans(plan_id, said)]


def _spans(plan_id: str, said: Mapping[str, bytes | None]) -> Iterator[Taken]:
    try:
        plan, progress = (json.loads(said.get(kind) or b"null") for kind in ("plan", "progress"))
        if plan is None:
            return
        progress = progress or {"state": "planning"}
        state = progress["state"]
        over = state in OVER or (bool(said.get("abort")) and state not in WORKED_ON)
        looked_at = progress.get("positions", {})
        for span in plan["spans"]:
            start, end = span["start"], span["end"]
            end = min(end, looked_at.get(str(span["partition"]), start)) if over else end
            if end > start:
                yield Taken(plan_id, plan["topic"], span["partition"], start, end)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"the redrive plan {plan_id} is none that this version can read: {error!r}") from error
