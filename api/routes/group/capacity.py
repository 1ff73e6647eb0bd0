"""Messages that are due against the rates of policies: where a peak doesn't fit, and the spread with which it would."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from api.dependencies import GivenPorts, Reader, json_response
from api.openapi.description import described
from api.pagination import Cursor, Limit, page
from api.ports import Ports
from api.routes.held import MINUTE_MS, missing_document, unavailable
from policies.fields import HOUR_S
from policies.glob import is_exact
from policies.model import Policy, Versioned
from sidecar.lookup.query import LookUpUnavailable
from sidecar.lookup.query import Query as HeldQuery
from sidecar.model.record import TopicPartition
from sidecar.model.times import with_times
from sidecar.overview.fitting import fit

POLICIES_MAX: Final = 20  # of one page: each topic of each is asked for, of all replicas
TOPICS_MAX: Final = 20  # of one policy that are asked for
MINUTES: Final = 60
MINUTES_MAX: Final = 1_440

router = APIRouter(tags=["group"])

Document = dict[str, Any]


class CapacityPage(BaseModel):
    """Policies with a rate, by name, and whether what is due for them fits. A page may have fewer than `limit`."""

    items: list[dict[str, Any]]
    next: str | None
    partial: bool
    missing: list[dict[str, Any]]


@router.get(
    "/v1/capacity",
    responses={200: {"model": CapacityPage}},
    **described("Compare what is due with the rates of targets", None, "look-up-unavailable"),
)
async def list_capacity(
    caller: Reader,
    ports: GivenPorts,
    minutes: Annotated[int, Query(ge=1, le=MINUTES_MAX)] = MINUTES,
    limit: Limit = POLICIES_MAX,
    cursor: Cursor = None,
) -> Response:
    """Compare what is due in the next minutes on the sources of each policy with a rate with what that lets through.

    A policy with several targets has its rate for each: `is_exact` is false, and it may fit all the same.
    """
    limited = sorted(
        (one for one in ports.policies.table.policies.values() if one.policy.target.rate is not None),
        key=lambda one: one.policy.name,
    )
    taken, following = page(limited, lambda one: one.policy.name, min(limit, POLICIES_MAX), cursor)
    items: list[Document] = []
    missing: set[TopicPartition] = set()
    try:
        for versioned in taken:
            item, lacking = await _item(ports, versioned, minutes)
            items.append(item)
            missing.update(lacking)
    except LookUpUnavailable as error:
        raise unavailable(error) from None
    return json_response({"items": items, "next": following, **missing_document(sorted(missing))})


async def _item(ports: Ports, versioned: Versioned, minutes: int) -> tuple[Document, set[TopicPartition]]:
    policy, table = versioned.policy, ports.policies.table
    this = ports.now_ms() // MINUTE_MS
    topics = sorted(topic for topic in ports.sources.topics if _is_of(table.rules(topic), policy))
    held, overdue, missing = [0] * minutes, 0, set[TopicPartition]()
    for topic in topics[:TOPICS_MAX]:
        counts, lacking = await ports.lookup.forecast(HeldQuery(topic), (this + minutes) * MINUTE_MS)
        held = [count + counts.get(this + place, 0) for place, count in enumerate(held)]
        overdue += sum(count for minute, count in counts.items() if 0 <= minute < this)
        missing.update(lacking)
    return _document(policy, topics, (held, overdue), this), missing


def _is_of(rules: Any, policy: Policy) -> bool:
    return any(rule.policy.name == policy.name for rule in rules)


def _document(policy: Policy, topics: list[str], due: tuple[list[int], int], this: int) -> Document:
    held, overdue = due
    per_hour = policy.target.rate or 1
    found = fit(held, overdue, per_hour)
    targets = sorted({*policy.target.allow, *((policy.target.topic,) if policy.target.topic else ())})
    peak = max(range(len(held)), key=lambda place: held[place])
    told = {
        "policy": policy.name,
        "targets": targets,
        "sources": topics[:TOPICS_MAX],
        "rate": per_hour / HOUR_S,
        "is_exact": len(targets) == 1 and is_exact(targets[0]) and len(topics) <= TOPICS_MAX,
        "fits": found.late_ms == 0,
        "late_ms": found.late_ms,
        "overdue": overdue,
        "peak": with_times({"minute": (this + peak) * MINUTE_MS, "held": held[peak]}, "minute"),
        "over_from": None if found.since < 0 else (this + found.since) * MINUTE_MS,
        "over_to": None if found.until < 0 else (this + found.until) * MINUTE_MS,
        "spread_ms": None if found.spread_ms < 0 else found.spread_ms,
        "minutes": [
            with_times({"minute": (this + place) * MINUTE_MS, "held": count}, "minute")
            for place, count in enumerate(held)
        ],
    }
    return with_times(told, "over_from", "over_to")
