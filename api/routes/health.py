"""Whether this process lives, is ready, and what it has done."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from api.dependencies import GivenPorts, Prober, Reader, Scraper, json_response
from api.openapi.description import described
from api.problems import Problem
from sidecar.model.stats import Stats, TargetFlow, TopicCounts
from sidecar.model.times import with_times
from sidecar.overview.reporting import warnings_of

router = APIRouter(tags=["process"])

# Whoever answers while the process starts (`api.serving.listener`) reads it; here it has started.
Started = Annotated[bool, Query(description="Until the process has started, 503 and no 200")]


@router.get("/livez", dependencies=[Prober], **described("Ask whether this process lives", None, "not-alive"))
async def get_liveness(ports: GivenPorts, started: Started = False) -> Response:
    """200 while the engine turns. When it hasn't for 10 s only a restart helps."""
    age_s = ports.monotonic_s() - ports.stats().turned_monotonic_s
    if age_s > ports.limits.turn_age_s:
        raise Problem(503, "not-alive", f"The engine has not turned for {age_s:.0f} s.")
    return json_response({"status": "alive"})


@router.get("/readyz", dependencies=[Prober], **described("Ask whether this process is ready", None, "not-ready"))
async def get_readiness(request: Request, ports: GivenPorts) -> Response:
    """200 when this process does its work, else 503 with what is wrong; where there are tokens, details need one."""
    here = ports.stats()
    is_known = await ports.gate.may_read(request, ports.monotonic_s())
    problems = list(here.problems if is_known else here.problem_kinds)
    if problems:
        raise Problem(503, "not-ready", "; ".join(problems), {"Retry-After": "1"}, problems=problems)
    warnings = warnings_of(here, "" if ports.policies.healthy else ports.policies.reason, ports.schedules.unread())
    if warnings and not is_known:
        warnings = [f"{len(warnings)}; with a token of the role read this says which"]
    return json_response({"status": "ready", "warnings": warnings})


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Scraper], **described("Scrape the metrics"))
async def get_metrics(ports: GivenPorts) -> Response:
    """Prometheus text."""
    text = await asyncio.to_thread(ports.metrics)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/stats", **described("Show the figures of this process"))
async def get_stats(caller: Reader, ports: GivenPorts) -> Response:
    """Counts of this process by source topic since it started, what it holds, and its lateness."""
    return json_response(stats_document(ports.stats()))


def stats_document(stats: Stats) -> dict[str, Any]:
    """`Stats` as plain data; `next_due` is epoch milliseconds, `suspended` are targets that don't acknowledge."""
    told = {
        "replica": stats.replica,
        "topics": {topic: _counts(counts) for topic, counts in sorted(stats.topics.items())},
        "lateness_ms": {
            "p50": stats.lateness.percentile(0.5),
            "p90": stats.lateness.percentile(0.9),
            "p99": stats.lateness.percentile(0.99),
            "max": stats.lateness.max_ms,
        },
        "targets": {target: _flow(flow) for target, flow in sorted(stats.targets.items())},
        "suspended": list(stats.suspended),
        "quotas": {policy: asdict(use) for policy, use in sorted(stats.quotas.items())},
        "early": stats.early,
        "oldest_overdue_ms": stats.oldest_overdue_ms,
        "next_due": None if stats.next_due_ms < 0 else stats.next_due_ms,
        "partitions": {
            "assigned": stats.partitions_assigned,
            "recovering": stats.partitions_recovering,
            "paused": stats.partitions_paused,
        },
        "rebuild": {
            "partitions": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "done": one.done,
                    "held": one.held,
                    "ledger_read_share": None if one.read_share < 0 else round(one.read_share, 3),
                }
                for one in stats.rebuilding
            ],
            "finished": stats.rebuilds,
            "records": sum(stats.rebuilt.values()),
            "lost": sum(stats.lost.values()),
        },
        "rebalances": stats.rebalances,
        "ledger_imbalance": stats.ledger_imbalance,
        "clock_skew_ms": stats.clock_skew_ms,
        "problems": list(stats.problems),
    }
    return with_times(told, "next_due")


def _flow(flow: TargetFlow) -> dict[str, Any]:
    return {"waiting": flow.waiting, "rate": flow.rate or None, "breaker": flow.breaker or None}


def _counts(counts: TopicCounts) -> dict[str, Any]:
    return {
        "accepted": counts.accepted,
        "emitted": counts.emitted,
        "dead": counts.dead,
        "quarantined": counts.quarantined,
        "cancelled": counts.cancelled,
        "replaced": counts.replaced,
        "applied": counts.applied,
        "not_found": counts.not_found,
        "held": {"wheel": counts.wheel, "overflow": counts.overflow},
        "parked": counts.parked,
    }
