"""Letters in the plans of the sidecar's own redrives: a job must leave them to the sidecar, or both would send them.

Their topic (one partition) has JSON under the keys `<plan id>/plan`, `/progress` and `/abort`; a key's last one counts.
A plan that may still run has all letters between its pinned ends, also while it is being aborted: whoever works on it
may be sending some. One that is done or was aborted has those that it has looked at: whether each was sent or passed
over, only its filter knows.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pipeline.errors import PipelineError
from pipeline.ingest.kafka_source import read_whole

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


def read_plans(client: Mapping[str, str], topic: str, again: bool = False) -> list[Taken]:
    """Read the offsets that the plans in this topic have now, also those behind what is open. Raises PipelineError."""
    try:
        records = list(read_whole(client, topic))
    except PipelineError as error:
        words = (
            "name the topic of the sidecar's redrives by --redrives, or say `--redrives none` where there is no sidecar"
        )
        raise PipelineError(f"{error}; {words}") from error
    except TimeoutError as error:
        raise PipelineError(f"{error}; a transaction is open there, `tickover doctor` names it: try again") from error
    return taken(records, again)


def taken(records: Iterable[tuple[bytes | None, bytes | None]], again: bool = False) -> list[Taken]:
    """Offsets that plans have, by the (key, value) of the records of their topic; `again`: only those of plans that may
    still run. Raises PipelineError for what this version can't read.
    """
    last: dict[str, dict[str, bytes | None]] = {}
    for key, value in records:
        plan_id, _, kind = (key or b"").decode(errors="replace").rpartition("/")
        if kind in ("plan", "progress", "abort"):
            last.setdefault(plan_id, {})[kind] = value
    return [one for plan_id, said in last.items() for one in _spans(plan_id, said, again)]


def _spans(plan_id: str, said: Mapping[str, bytes | None], again: bool) -> Iterator[Taken]:
    try:
        plan, progress = (json.loads(said.get(kind) or b"null") for kind in ("plan", "progress"))
        if plan is None:
            return
        progress = progress or {"state": "planning"}
        state = progress["state"]
        over = state in OVER or (bool(said.get("abort")) and state not in WORKED_ON)
        if over and again:
            return
        looked_at = progress.get("positions", {})
        for span in plan["spans"]:
            start, end = span["start"], span["end"]
            end = min(end, looked_at.get(str(span["partition"]), start)) if over else end
            if end > start:
                yield Taken(plan_id, plan["topic"], span["partition"], start, end)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"the redrive plan {plan_id} is none that this version can read: {error!r}") from error
