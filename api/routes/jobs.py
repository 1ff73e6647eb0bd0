"""Common parts of all jobs over REST, be they redrives or changes: answers, refusals, the order of lists."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.responses import Response

from api.dependencies import json_response
from api.problems import Problem
from api.routes.dead_letters import answered
from sidecar.kafka.topic_reader import LogUnavailable
from sidecar.operations.jobs.job import Job
from sidecar.operations.jobs.runner import JobRefused

STATUSES: Final = {
    "redrive-not-found": 404,
    "redrive-too-large": 422,
    "redrive-active": 409,
    "redrive-ended": 409,
    "nothing-to-redrive": 409,
    "target-gone": 409,
    "letters-gone": 409,
    "letters-busy": 409,
    "too-many-redrives": 409,
    "redrives-busy": 503,
    "transactions-unsupported": 503,
    "change-not-found": 404,
    "change-too-large": 422,
    "change-active": 409,
    "change-ended": 409,
    "nothing-to-change": 409,
    "stale-token": 409,
    "plan-expired": 409,
    "too-many-changes": 409,
    "changes-busy": 503,
}

Answer = TypeVar("Answer")


def age(job: Job) -> str:
    """In the order of lists: the newest first."""
    return f"{(1 << 53) - job.plan.created_ms:016}{job.plan.id}"


def accepted(document: dict[str, Any], location: str) -> Response:
    """202: it has begun, or was asked for."""
    return json_response(document, 202, {"Location": location})


async def told(ask: Callable[[], Answer]) -> Answer:
    """Run a blocking call in a thread, and return its answer. Raises `Problem`."""
    try:
        return await answered(asyncio.to_thread(ask))
    except JobRefused as error:
        status = STATUSES.get(error.type, 422)
        headers = {"Retry-After": "5"} if status == 503 else {}
        raise Problem(status, error.type, str(error), headers) from None
    except LogUnavailable as error:
        detail = f"The topic of jobs can't be read or written at the moment: {error}."
        raise Problem(503, "kafka-unavailable", detail, {"Retry-After": "1"}) from None
