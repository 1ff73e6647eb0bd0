"""`GET /v1/events` by HTTP: a stream that is read, resumed, limited, given up by its client, and ended by the stop."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from api.events import feed as feeds
from api.serving.listener import GRACE_S
from api.serving.server import Server
from tests.unit.api_world import REMINDERS, RETRY, World, problem, world

pytestmark = pytest.mark.slow

ANSWER_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "STEP_S", 0.05)


@contextmanager
def serving(api: World) -> Iterator[str]:
    server = Server(api.app, "127.0.0.1", 0)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        api.app.state.events.stop()
        server.stop()


@contextmanager
def stream(url: str, *events: str, last_id: str = "") -> Iterator[Iterator[dict[str, str]]]:
    """Events of a stream, each as its fields; comments are left out."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    params = {"event": list(events)}
    with httpx.stream("GET", f"{url}/v1/events", headers=headers, params=params, timeout=ANSWER_S) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield parsed(response.iter_lines())


def parsed(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "event" in fields:
            yield fields
            fields = {}


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + ANSWER_S
    waiting = threading.Event()
    while not true():
        assert time.monotonic() < deadline_s
        waiting.wait(0.01)


def test_a_stream_tells_what_changes_and_resumes_after_it_was_lost() -> None:
    with world() as api, serving(api) as url:
        with stream(url, "policies", "pauses") as events:
            assert next(events)["event"] == "reset"
            api.add(REMINDERS)
            first = next(events)
            assert (first["event"], '"added": ["reminders"]' in first["data"]) == ("policies", True)
        wait_until(lambda: not listeners(api))  # the client is gone, and nobody looks
        api.add(RETRY)
        with stream(url, "policies", "pauses", last_id=first["id"]) as events:
            second = next(events)
            assert (second["event"], '"added": ["orders-retry"]' in second["data"]) == ("policies", True)
        with stream(url, "policies", last_id="of-another-process-3") as events:
            assert next(events)["event"] == "reset"
        assert api.audited == []


def listeners(api: World) -> set[Any]:
    """Listeners of now."""
    found: set[Any] = api.app.state.events._listeners
    return found


def test_nothing_of_a_stream_waits_in_a_buffer() -> None:
    with world() as api, serving(api) as url:
        headers = {"Accept-Encoding": "gzip, deflate"}
        with httpx.stream("GET", f"{url}/v1/events", headers=headers, timeout=ANSWER_S) as response:
            assert "content-encoding" not in response.headers
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["cache-control"] == "no-store"
            assert next(response.iter_raw()) == b"retry: 2000\n\n"


def test_there_is_room_for_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    with world() as api, serving(api) as url:
        monkeypatch.setattr(api.app.state.events, "_listeners_max", 1)
        with stream(url) as events:
            next(events)
            refused = httpx.get(f"{url}/v1/events", timeout=ANSWER_S)
            problem(refused, 503, "too-many-streams")
            assert refused.headers["retry-after"] == "10"
            assert httpx.get(f"{url}/v1/policies", timeout=ANSWER_S).status_code == 200
        wait_until(lambda: not listeners(api))
        with stream(url) as events:
            assert next(events)["event"] == "reset"


def test_a_head_of_a_stream_ends() -> None:
    with world() as api, serving(api) as url, httpx.Client(timeout=ANSWER_S) as client:
        for _ in range(2):  # on one connection: the first one left nothing behind
            head = client.head(f"{url}/v1/events")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"].startswith("text/event-stream")
        assert client.options(f"{url}/v1/events").headers["allow"] == "GET, HEAD, OPTIONS"
        wait_until(lambda: not listeners(api))


def test_a_stop_does_not_wait_for_streams() -> None:
    with world() as api:
        server = Server(api.app, "127.0.0.1", 0)
        server.start()
        with stream(f"http://127.0.0.1:{server.port}") as events:
            next(events)
            before_s = time.monotonic()
            api.app.state.events.stop()
            server.stop()
            assert time.monotonic() - before_s < GRACE_S, "it was cut off, and not ended"
            assert list(events) == [], "it ends in order"
        assert server.failure is None


def test_a_stream_needs_the_role_read_and_known_names() -> None:
    with world() as api, serving(api) as url:
        problem(httpx.get(f"{url}/v1/events", params={"event": "letters"}, timeout=ANSWER_S), 422, "invalid-parameter")
        problem(httpx.get(f"{url}/v1/events", params={"events": "all"}, timeout=ANSWER_S), 422, "unknown-parameter")
        foreign = httpx.get(f"{url}/v1/events", headers={"Sec-Fetch-Site": "cross-site"}, timeout=ANSWER_S)
        problem(foreign, 403, "origin-not-allowed")
        assert not listeners(api)
