"""One answer of several processes' answers."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import Response

from api.serving.siblings import NOT_THERE, SILENT, liveness_of_all, metrics_of_all, readiness_of_all, refusal_of

ALIVE = httpx.Response(200, json={"status": "alive"})
STARTING = httpx.Response(200, json={"status": "starting"})
DEAD = httpx.Response(503, json={"detail": "The engine has not turned for 12 s."})
TEXT = """\
# HELP tickover_emitted_total Records emitted to their target
# TYPE tickover_emitted_total counter
tickover_emitted_total{topic="a"} %d
# HELP tickover_lateness_seconds Hand-over to the producer minus due
# TYPE tickover_lateness_seconds histogram
tickover_lateness_seconds_bucket{le="0.1"} 1
tickover_lateness_seconds_bucket{le="+Inf"} 2
tickover_lateness_seconds_count 2
tickover_lateness_seconds_sum 0.5
"""


def document(response: Response) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(bytes(response.body))
    return told


def ready(*warnings: str) -> httpx.Response:
    return httpx.Response(200, json={"status": "ready", "warnings": list(warnings)})


def not_ready(*problems: str) -> httpx.Response:
    return httpx.Response(503, json={"detail": "; ".join(problems), "problems": list(problems)})


def scraped(number: int) -> httpx.Response:
    return httpx.Response(200, text=TEXT % number, headers={"content-type": "text/plain; version=0.0.4"})


def samples(response: Response) -> Mapping[tuple[str, str, str], float]:
    """Value by (name, process, `le` or topic)."""
    families = text_string_to_metric_families(bytes(response.body).decode())
    return {
        (one.name, one.labels["process"], one.labels.get("le", one.labels.get("topic", ""))): one.value
        for family in families
        for one in family.samples
    }


def test_all_live_while_nobody_says_otherwise() -> None:
    assert document(liveness_of_all({1: ALIVE, 2: ALIVE}, is_start=False)) == {"status": "alive"}
    assert document(liveness_of_all({1: ALIVE, 2: STARTING}, is_start=False)) == {"status": "starting"}


def test_one_whose_engine_hangs_needs_a_restart_of_all() -> None:
    told = liveness_of_all({1: ALIVE, 2: DEAD}, is_start=False)
    assert told.status_code == 503
    assert document(told)["type"] == "/problems/not-alive"
    assert document(told)["detail"] == "process 2: The engine has not turned for 12 s."


def test_one_that_says_nothing_does_not_live_and_one_that_is_replaced_does() -> None:
    assert liveness_of_all({1: ALIVE, 2: SILENT}, is_start=False).status_code == 503
    assert liveness_of_all({1: ALIVE, 2: NOT_THERE}, is_start=False).status_code == 200


def test_a_start_is_over_when_all_are_there() -> None:
    assert liveness_of_all({1: ALIVE, 2: NOT_THERE}, is_start=True).status_code == 503
    assert liveness_of_all({1: ALIVE, 2: ALIVE}, is_start=True).status_code == 200


def test_ready_are_all_or_none() -> None:
    assert document(readiness_of_all({1: ready("w"), 2: ready("w", "x")})) == {
        "status": "ready",
        "warnings": ["process 1, 2: w", "process 2: x"],
    }
    told = readiness_of_all({1: ready(), 2: not_ready("redis is away", "p"), 3: not_ready("redis is away"), 4: SILENT})
    assert told.status_code == 503
    assert document(told)["problems"] == ["process 2, 3: redis is away", "process 2: p", f"process 4: {SILENT}"]


def test_a_scrape_has_the_samples_of_all_each_family_once() -> None:
    told = metrics_of_all({1: scraped(10), 2: scraped(20), 3: NOT_THERE}, own=1)
    assert told.status_code == 200
    text = bytes(told.body).decode()
    assert text.count("# TYPE tickover_emitted_total counter") == 1
    found = samples(told)
    assert found["tickover_emitted_total", "1", "a"] == 10
    assert found["tickover_emitted_total", "2", "a"] == 20
    assert found["tickover_lateness_seconds_bucket", "2", "+Inf"] == 2
    assert [found["tickover_process_up", number, ""] for number in "123"] == [1, 1, 0]


def test_whom_the_process_refuses_it_tells_nothing_of_others() -> None:
    headers = {"content-type": "application/problem+json", "www-authenticate": "Bearer", "content-length": "2"}
    told = refusal_of(httpx.Response(401, content=b"{}", headers=headers))
    assert told is not None
    assert (told.status_code, told.body) == (401, b"{}")
    assert told.headers["www-authenticate"] == "Bearer"
    assert told.headers["content-type"] == "application/problem+json"
    assert refusal_of(httpx.Response(200)) is None
    assert refusal_of("it does not answer") is None
