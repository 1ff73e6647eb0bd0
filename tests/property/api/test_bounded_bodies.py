"""No body costs much: for every route and every hostile body memory stays small and no other thread waits long.

`pytest -s tests/property/api/test_bounded_bodies.py` prints the table of docs/api-security.md.
"""

import gc
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from fastapi.routing import APIRoute

from api.shape import KEYS_MAX, VALUES_MAX
from policies.model import GLOB_TEXT_MAX
from tests.unit.api_world import REMINDERS, World, world

BODY_BYTES: Final = 1 << 20
MEMORY_BYTES_MAX: Final = 30_000_000
STALL_S_MAX: Final = 0.05
TRIES: Final = 4  # on a busy machine a thread may wait for a processor: the best counts
TICK_S: Final = 0.001
ALL: Final = bool(os.environ.get("TICKOVER_TEST_SOAK"))  # of the kinds of unions each with each value, not in turn
KINDS: Final = 3

Value = Callable[[int], Any]

# By what is wrong with them: values for wherever a model wants something; `n` is how many may be in it.
VALUES: Final[dict[str, Value]] = {
    "lists": lambda n: [[]] * n,
    "objects": lambda n: [{}] * n,
    "pairs": lambda n: [["a", {}]] * (n // 3),
    "fitting texts": lambda n: ["a"] * n,
    "fitting pairs": lambda n: [[f"h{number}", "a"] for number in range(n // 3)],
    "fitting durations": lambda n: ["15m"] * n,
    "wrong durations": lambda n: ["1x"] * n,
    "unknown keys": lambda n: {f"k{number}": 0 for number in range(min(n, KEYS_MAX))},
    "unknown keys in items": lambda n: [["a", {f"k{number}": 0 for number in range(min(n, KEYS_MAX) - 4)}]],
    "wrong items by name": lambda n: {f"k{number}": {} for number in range(min(n // 2, KEYS_MAX))},
    "long texts": lambda n: "x" * (40 * n),
    "texts beyond the plane": lambda n: "\N{GRINNING FACE}" * (10 * n),
    "control characters": lambda n: "\x00" * (6 * n),
    "long numbers": lambda n: [10**4_000] * max(n // 200, 1),
    "nested": lambda n: json.loads("[" * 200 + "]" * 200) if n > 200 else [],
    "half characters": lambda n: ["\ud800"] * n,
}


def repeated(piece: bytes, begin: bytes = b"[", end: bytes = b"0]") -> bytes:
    return begin + piece * ((BODY_BYTES - len(begin) - len(end)) // len(piece)) + end


# What is hostile to every model, because none will see it, or it has nothing that any model asks for.
BODIES: Final[dict[str, bytes]] = {
    "lists": repeated(b"[],"),
    "objects": repeated(b'{"":0},'),
    "numbers": repeated(b"0,"),
    "fractions": repeated(b"1.5,"),
    "texts": repeated(b'"",'),
    "quotes": repeated(b'"', b"", b""),
    "depth": repeated(b"[", b"", b""),
    "depth of objects": repeated(b'{"a":', b"", b"0"),
    "spaces": repeated(b" ", b"", b"{}"),
    "digits": repeated(b"1", b'{"a":', b"}"),
    "digits of a fraction": repeated(b"1", b'{"a":1.', b"}"),
    "many long numbers": repeated(b"1" * 4_000 + b","),
    "exponents": repeated(b"1e999,"),
    "one key again and again": repeated(b'"a":0,', b"{", b'"b":0}'),
    "unknown keys": b"{" + b",".join(b'"%x":0' % number for number in range(95_000)) + b"}",
    "long keys": b"{" + b",".join(b'"%x%s":0' % (number, b"k" * 10_000) for number in range(100)) + b"}",
    "half characters": repeated(rb"\ud800", b'{"a":"', b'"}'),
    "escaped quotes": repeated(rb"\",", b'{"value":"', b'"}'),
    "backslashes": repeated(rb"\\", b'{"value":"', b'"}'),
    "wide text": '{"value":"\N{GRINNING FACE}'.encode() + b"x" * (BODY_BYTES - 20) + b'"}',
}


# A model without lists, mappings and models in it meets only these: the others end before its difference matters.
FOR_EVERY_MODEL: Final = ("unknown keys", "long keys", "wide text", "long texts", "long numbers", "pairs")


def filled(schema: dict[str, Any], schemas: dict[str, Any], value: Value, choice: int, budget: list[int]) -> Any:
    """A body after the schema, with `value` in all its places; `choice` chooses among kinds of a union."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    options = [option for option in schema.get("anyOf", schema.get("oneOf", [])) if option.get("type") != "null"]
    if options and "properties" not in schema:
        return filled(options[choice % len(options)], schemas, value, choice, budget)
    if "const" in schema:
        return schema["const"]
    if "properties" in schema:
        body = {name: filled(part, schemas, value, choice, budget) for name, part in schema["properties"].items()}
        return {**body, **{f"unknown{number}": 0 for number in range(choice)}}
    budget[0] += 1
    return value(budget[1])


def hostile(route: APIRoute, schemas: dict[str, Any], turn: int) -> Iterator[tuple[str, bytes]]:
    """Bodies for the route, at most as long as a body may be. Most of `BODIES` end before any model: once is enough.

    The first route (`turn` 0) meets all values, the others each second of them, so that each model meets most.
    """
    schema = model_of(route, schemas)
    holds_many = any(word in json.dumps(schema) for word in ('"array"', '"additionalProperties": {', "$ref"))
    yield from ((name, body) for name, body in BODIES.items() if ALL or not turn or name in FOR_EVERY_MODEL)
    for number, (name, value) in enumerate(VALUES.items()):
        if not (ALL or name in FOR_EVERY_MODEL or (holds_many and (not turn or (number + turn) % 2))):
            continue
        for choice in range(KINDS) if ALL else [number % KINDS]:
            counted = [0, 1]
            filled(schema, schemas, value, choice, counted)
            share = [0, VALUES_MAX // (counted[0] or 1) * 9 // 10]
            body = filled(schema, schemas, value, choice, share)
            yield f"{name} ({choice})", json.dumps(body).encode()[:BODY_BYTES]


def model_of(route: APIRoute, schemas: dict[str, Any]) -> dict[str, Any]:
    content = (route.openapi_extra or {})["requestBody"]["content"]["application/json"]["schema"]
    schema: dict[str, Any] = schemas[content["$ref"].rpartition("/")[2]]
    return schema


def routes_of(api: World) -> list[APIRoute]:
    return [route for route in api.app.state.routes if isinstance(route, APIRoute)]


def takes_a_body(route: APIRoute) -> bool:
    return bool((route.openapi_extra or {}).get("requestBody"))


class Ticker:
    """A thread that wants to run all the time: the processor's seconds that this process used while it could not.

    Seconds of the processor, not of the clock: other processes of the machine don't count.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        last_s = time.process_time()
        while not self._ended.wait(TICK_S):
            now_s = time.process_time()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s

    @contextmanager
    def watching(self) -> Iterator["Ticker"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()


@dataclass
class Cost:
    """The worst of a route's bodies."""

    bytes_max: int = 0
    stall_s: float = 0.0
    by: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, used_bytes: int, stall_s: float) -> None:
        if used_bytes > self.bytes_max:
            self.bytes_max, self.by["memory"] = used_bytes, name
        if stall_s > self.stall_s:
            self.stall_s, self.by["stall"] = stall_s, name


def ask(api: World, route: APIRoute, body: bytes) -> None:
    path = route.path.replace("{id:path}", "a").replace("{name}", "p").replace("{id}", "a")
    method = min(route.methods or {"GET"})
    response = api.send_raw(method, path, body, **{"if-none-match": "*", "idempotency-key": "k"})
    assert response.status_code < 500, (method, path, body[:80], response.text[:200])


def memory_of(api: World, route: APIRoute, body: bytes) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        ask(api, route, body)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def stall_of(api: World, route: APIRoute, body: bytes) -> float:
    best_s = float("inf")
    for _ in range(TRIES):
        with Ticker().watching() as ticker:
            ask(api, route, body)
        best_s = min(best_s, ticker.longest_s)
        if best_s <= STALL_S_MAX:
            break
    return best_s


@pytest.mark.slow
def test_no_body_takes_much_memory_or_stalls_another_thread() -> None:
    costs: dict[str, Cost] = {}
    with world() as api:
        api.add(REMINDERS)
        schemas = api.app.openapi()["components"]["schemas"]
        for route in sorted(routes_of(api), key=takes_a_body, reverse=True):
            method = min(route.methods or {"GET"})
            turn = len(costs)
            cost = costs.setdefault(f"{method} {route.path}", Cost())
            bodies = hostile(route, schemas, turn) if takes_a_body(route) else [("lists", BODIES["lists"])]
            for name, body in bodies:
                cost.note(name, memory_of(api, route, body), stall_of(api, route, body))
    table = [
        f"| `{name}` | {cost.bytes_max / 1e6:.1f} | {cost.by.get('memory')} | {cost.stall_s * 1e3:.0f} |"
        for name, cost in costs.items()
    ]
    print("", "| route | MB | of | stall, ms |", "|---|---|---|---|", *table, sep="\n")
    assert all(cost.bytes_max < MEMORY_BYTES_MAX and cost.stall_s < STALL_S_MAX for cost in costs.values())


def characters(count: int, begin: int = 0x4E00) -> str:
    """Different ones, which a set or a state machine has to keep apart."""
    return "".join(chr(begin + number % 20_000) for number in range(count))


# Globs of `GLOB_TEXT_MAX` characters, and what they are matched with to the end.
GLOBS: Final[dict[str, list[str]]] = {
    "stars": ["*a" * 512] * 64,
    "stars and any": [f"*?{chr(0x4E00 + number)}*" for number in range(1_000)],
    "any": ["*" + "?a" * 511 + "*"] * 64,
    "sets": ["*" + "".join(f"[{one}-{chr(ord(one) + 1)}]*" for one in characters(170)[::2]) for _ in range(64)],
    "long sets": ["*[!" + characters(1_018) + "]a*"] * 64,
    "literals": ["*" + characters(500, 0x4E00 + 500 * number) + "?" + "*a" * 250 for number in range(60)],
    "open brackets": ["*" + "[" * 1_023] * 64,
}


@pytest.mark.slow
def test_explaining_a_policy_of_hostile_globs_takes_little_and_leaves_nothing() -> None:
    class_of_error = {name: text[:1_024] for name, text in {"a": "a" * 1_024, "wide": characters(341)}.items()}
    costs: dict[str, Cost] = {}
    with world() as api:
        route = next(route for route in routes_of(api) if route.path == "/v1/policies/explain")
        for name, globs in GLOBS.items():
            # Each is told from the others by what stands before it: equal globs are matched once.
            given = [f"{glob[: 1_020 - len(str(number))]}{number}*" for number, glob in enumerate(globs)]
            while sum(map(len, given)) > GLOB_TEXT_MAX - 50:
                given.pop()
            for text in class_of_error.values():
                retry = {"attempts": 3, "backoff": {"kind": "fixed", "delay": "1s"}, "retry_on": given}
                policy = {"name": "p", "match": {"topics": ["orders-retry"]}, "retry": retry}
                record = {"topic": "orders-retry", "headers": {"tickover-error-class": text}}
                body = json.dumps({"policy": policy, "record": record}).encode()
                used_bytes = memory_of(api, route, body) if text.isascii() else 0
                costs.setdefault(name, Cost()).note(name, used_bytes, stall_of(api, route, body))
        kept = [kept_after(api, route, body) for _ in range(2)]
    print(
        "",
        *(f"{name}: {cost.bytes_max / 1e6:.1f} MB, {cost.stall_s * 1e3:.0f} ms" for name, cost in costs.items()),
        sep="\n",
    )
    assert all(cost.bytes_max < MEMORY_BYTES_MAX and cost.stall_s < STALL_S_MAX for cost in costs.values())
    assert kept[-1] < 100_000
    assert api.policies.table.policies == {}


def kept_after(api: World, route: APIRoute, body: bytes) -> int:
    """Bytes that are still there when a request is gone; its globs were never there before."""
    tracemalloc.start()
    try:
        ask(api, route, body.replace(b'"retry_on": ["', b'"retry_on": ["%d' % time.monotonic_ns()))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
