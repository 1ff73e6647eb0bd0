"""The overflow alone: how fast records go in and come back, and what they cost in Redis.

    .venv/bin/python -m benchmarks.overflow [--records 1000000]

One Python thread, the bundled Valkey with every write synced to disk before it is answered. The baseline, measured in
the same run, is the plain layout: one ZSET member per record and its payload, packed, in a HASH.
"""

import argparse
import gc
import json
import os
import platform
import random
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis
from rich.console import Console
from rich.table import Table

from policies.headers import OFFSET_MAX
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.model.record import Held, Position, TopicPartition
from sidecar.overflow.interface import Change
from sidecar.overflow.keys import LaneKeys
from sidecar.overflow.redis_overflow import RedisOverflow, open_overflow

NOW_MS = 1_700_000_000_000
BLOCK_RECORDS = 2_000
LANE = TopicPartition("reminders", 0)
SLOW_US = 10_000
STEP_MS = 1_000
PROMOTE_RECORDS_MAX = 10_000
HOUR_MS = 3_600_000

_HEAD = struct.Struct("<QQHHH")


class Row(NamedTuple):
    """One line of the table."""

    what: str
    watch: "Watch"
    records: int
    memory_bytes: float
    slow: int


class Watch:
    """Adds up time while it runs: on the wall, and of the client's processor, which tells more on a busy machine."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> "Watch":
        self.seconds -= time.perf_counter()
        self.cpu_seconds -= time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += time.process_time()


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    arguments = parser.parse_args()
    count = arguments.records
    gc.disable()  # as the engine does: it makes no cycles
    rows: list[Row] = []
    for name, spread_ms in (("10 min", 600_000), ("24 h", 24 * HOUR_MS)):
        rows += run_chunks(count, spread_ms, f"delays spread over {name}")
    rows += run_chunks(count, 60_000, "all in one slot of 60 s")
    rows += run_constant(count)
    rows += run_plain(min(count, 200_000))
    show(rows, count)


def run_chunks(count: int, spread_ms: int, name: str) -> Iterator[Row]:
    """Random delays: every block brings a chunk for every slot, so that chunks overlap as much as they can."""
    with Bench() as bench:
        yield from bench.put(make_records(count, lambda _: random.randrange(60_000, 60_000 + spread_ms)), name)
        if spread_ms > 2 * HOUR_MS:
            yield bench.cascade(spread_ms, name)
        # As far as one step of a busy lane reaches: with 12 records a second, steps of 1 s measure only the steps.
        yield bench.promote(spread_ms, count, name, STEP_MS if spread_ms <= HOUR_MS else 60_000)


def run_constant(count: int) -> Iterator[Row]:
    """One delay for all, 20,000 records a second."""
    name = "one delay for all, 20 k/s"
    with Bench() as bench:
        yield from bench.put(make_records(count, lambda offset: 60_000 + offset // 20), name)
        yield bench.promote(count // 20 + 60_000, count, name)


class Bench:
    """A fresh server with an overflow."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self.server = EmbeddedValkey(Path(self._directory.name) / "valkey")

    def __enter__(self) -> "Bench":
        self.server.start()
        self.overflow: RedisOverflow = open_overflow(self.server.url, "bench")
        self.client: Any = Redis.from_url(self.server.url, protocol=2)
        self.client.config_set("slowlog-log-slower-than", SLOW_US)
        self.client.config_set("slowlog-max-len", 10_000)
        self.base = used_memory(self.client)
        return self

    def __exit__(self, *_: object) -> None:
        self.overflow.close()
        self.client.close()
        self.server.stop()
        self._directory.cleanup()

    def put(self, blocks: Iterator[list[Held]], name: str) -> Iterator[Row]:
        """Blocks of 2,000, eight to a call; making the records is not measured."""
        watch, count = Watch(), 0
        changes: list[Change] = []
        for number, block in enumerate(blocks, start=1):
            count += len(block)
            changes.append(Change(LANE, number, block))
            if len(changes) == 8:
                with watch:
                    self.overflow.apply(changes, NOW_MS)
                changes.clear()
        with watch:
            self.overflow.apply(changes, NOW_MS)
        yield Row(f"put, {name}", watch, count, (used_memory(self.client) - self.base) / count, self.slow())

    def cascade(self, spread_ms: int, name: str) -> Row:
        """Everything from the coarse level to the fine one, hour by hour as time would."""
        now_ms = NOW_MS
        with Watch() as watch:
            while now_ms < NOW_MS + 60_000 + spread_ms:
                now_ms += HOUR_MS
                while self.overflow.tidy(LANE, Position(0, 0), now_ms):
                    pass
        count = self.overflow.count(LANE, Position(0, 0))
        memory = (used_memory(self.client) - self.base) / count
        return Row(f"cascade, {name}", watch, count, memory, self.slow())

    def promote(self, spread_ms: int, count: int, name: str, step_ms: int = STEP_MS) -> Row:
        """In steps up to the end; what comes is let go, as the wheel does when it fires."""
        after, end_ms = Position(NOW_MS, 0), NOW_MS + 60_000 + spread_ms
        seen, latest = 0, Position(0, 0)
        with Watch() as watch:
            while after.due_ms < end_ms:
                until = Position(after.due_ms + step_ms, OFFSET_MAX)
                while after < until:
                    step = self.overflow.promote(LANE, after, until, PROMOTE_RECORDS_MAX, 1)
                    after = step.cursor
                    if step.records:
                        assert step.records[0].position > latest
                        latest = step.records[-1].position
                    seen += len(step.records)
        assert seen == count, f"{seen} of {count} records came back"
        while self.overflow.tidy(LANE, Position(end_ms + 2 * HOUR_MS, 0), NOW_MS):
            pass
        left = {key.decode() for key in self.client.scan_iter()}
        assert left == set(LaneKeys("bench", LANE).fixed), left
        return Row(f"promote, {name}", watch, seen, 0, self.slow())

    def slow(self) -> int:
        """How many commands took over 10 ms since the last time."""
        entries = self.client.slowlog_get(10_000)
        self.client.slowlog_reset()
        for entry in entries[:3]:
            print(f"slow: {entry['duration'] / 1000:.1f} ms {entry['command'][:80]!r}", file=sys.stderr)
        return len(entries)


def run_plain(count: int) -> Iterator[Row]:
    """The baseline: a ZSET member per record, its payload in a HASH."""
    with Bench() as bench:
        client, watch = bench.client, Watch()
        for block in make_records(count, lambda _: random.randrange(60_000, 660_000)):
            with watch:
                put_plain(client, block)
        memory = (used_memory(client) - bench.base) / count
        yield Row("put, plain layout", watch, count, memory, bench.slow())
        seen, low = 0, NOW_MS
        with Watch() as watch:
            while low < NOW_MS + 660_000:
                members = client.zrangebyscore("plain", low, f"({low + STEP_MS}")
                for place in range(0, len(members), 1_000):
                    page = members[place : place + 1_000]
                    seen += len(list(map(unpack_plain, page, client.hmget("plain:payload", page))))
                low += STEP_MS
        yield Row("promote, plain layout", watch, seen, 0, bench.slow())


def put_plain(client: Any, block: list[Held]) -> None:
    pipeline = client.pipeline(transaction=False)
    members = {b"%d" % held.offset: held.due_ms for held in block}
    pipeline.zadd("plain", members)
    pipeline.hset("plain:payload", mapping=dict(zip(members, map(pack_plain, block), strict=True)))
    pipeline.execute()


def pack_plain(held: Held) -> bytes:
    key, value = held.key or b"", held.value or b""
    rest = json.dumps([held.target, held.policy, [(name, (text or b"").decode()) for name, text in held.headers]])
    head = _HEAD.pack(held.due_ms, held.offset, len(key), len(value), len(rest))
    return b"".join((head, key, value, rest.encode()))


def unpack_plain(member: bytes, payload: bytes) -> tuple[Any, ...]:
    due_ms, offset, key_bytes, value_bytes, _ = _HEAD.unpack_from(payload)
    place = _HEAD.size + key_bytes
    rest = json.loads(payload[place + value_bytes :])
    return member, due_ms, offset, payload[_HEAD.size : place], payload[place : place + value_bytes], rest


def make_records(count: int, delay_ms: Callable[[int], int]) -> Iterator[list[Held]]:
    """Blocks of records with values of 200 bytes: an order with random ids, names and amounts."""
    for start in range(0, count, BLOCK_RECORDS):
        yield [make_record(offset, delay_ms(offset)) for offset in range(start, min(start + BLOCK_RECORDS, count))]


def make_record(offset: int, delay_ms: int) -> Held:
    chance = random.getrandbits
    order = {
        "order_id": str(uuid.UUID(int=chance(128))),
        "customer": f"C{chance(27):09d}",
        "status": ("new", "paid", "sent", "back")[chance(2)],
        "amount": chance(20) / 100,
        "currency": ("EUR", "USD", "GBP", "SEK")[chance(2)],
        "items": [{"sku": f"{chance(32):08X}", "quantity": 1 + chance(2)}],
        "created": NOW_MS + chance(24),
    }
    value = json.dumps(order).encode().ljust(200)[:200]
    headers: list[tuple[str, bytes | None]] = [
        ("trace-id", b"%016x" % chance(64)),
        ("content-type", b"application/json"),
    ]
    key = b"C%09d" % chance(27)
    return Held(
        NOW_MS + delay_ms, offset, "orders", -1, key, value, headers, "reminders@1", None, 0, -1, [], -1,
        "reminders-dlq", len(value) + len(key) + 32,
    )  # fmt: skip


def used_memory(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def show(rows: list[Row], count: int) -> None:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"command: {' '.join(sys.argv)}\nmachine: {machine}, load {os.getloadavg()[0]:.1f} at the end")
    table = Table("what", "records/s", "us/record", "client CPU us", "Redis bytes/record", "commands > 10 ms")
    for row in rows:
        memory = f"{row.memory_bytes:.0f}" if row.memory_bytes else ""
        rate, cpu_us = row.records / row.watch.seconds, row.watch.cpu_seconds * 1e6 / row.records
        table.add_row(row.what, f"{rate:,.0f}", f"{1e6 / rate:.2f}", f"{cpu_us:.2f}", memory, str(row.slow))
    Console(width=128).print(table)
    print(
        f"caveats: {count:,} records with values of 200 bytes and two headers; client and server share the machine;\n"
        "promote in steps of 1 s (24 h: 60 s), records let go as they come; garbage collection off, as in the engine;\n"
        "the plain layout runs on at most 200,000 records and keeps less of each record."
    )


if __name__ == "__main__":
    main()
