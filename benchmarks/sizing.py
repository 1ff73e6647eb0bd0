"""Terms of the formula by which `tickover size` reckons: Redis, Kafka's disk, memory and CPU of the sidecar.

    python -m benchmarks.sizing [--only redis|kafka|memory] [--seconds 20] [--rates 200 10000]

A chunk in Redis has what one block had for one slot, so few records a second make small chunks. Records of 200 and of
1,000 bytes, one to a chunk and 512 to a chunk, give what a chunk, a record and a byte of its value take. Two loads on a
sidecar with default settings give what a record and a block take in the ledger, and what a record and an interval cost
of a core. The baseline of each term is in the same run: an empty server, or a sidecar that nobody sends anything.
"""

import argparse
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic
from redis import Redis

from benchmarks import overflow
from benchmarks.harness import PARTITIONS, SOURCE, Bench, Report, Sidecar, wait_until
from benchmarks.memory import settled_memory
from benchmarks.overflow import LANE, NOW_MS, make_record, used_memory
from benchmarks.traffic import Filler, new_id, request_headers
from policies.headers import ID
from sidecar.model.record import Held
from sidecar.overflow.interface import Change

TARGET: Final = "bench-target-sizing"
HOUR_MS: Final = 3_600_000
SMALL_BYTES: Final = 200
LARGE_BYTES: Final = 1_000
FULL: Final = 512  # records of a full chunk
CHUNKS_FULL: Final = 130  # so many ids that the hashes of the index have just grown
CHUNKS_OF_ONE: Final = 10_000
SPREAD_HOURS: Final = 24
NAMED_RATE: Final = 2_000
LONE_RECORDS: Final = 3_000
WIDE_PARTITIONS: Final = 200
WHEEL_RECORDS: Final = 200_000
WHEEL_RATE: Final = 5_000
WHEEL_DELAY_MS: Final = 9 * 60_000
TRICKLE_RECORDS: Final = 4_000
TRICKLE_RATE: Final = 200
BACKLOG_RECORDS: Final = 1_000_000
SHORT_DELAYS_MS: Final = (2_000, 4_000)  # with a horizon of 1 s: through Redis and back
TIMEOUT_S: Final = 300.0
MEGABYTE: Final = 1e6


class Measured(NamedTuple):
    """One line of the table."""

    what: str
    figure: str
    how: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("redis", "kafka", "memory"))
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rates", type=int, nargs=2, default=[200, 10_000])
    arguments = parser.parse_args()
    rows: list[Measured] = []
    if arguments.only in (None, "redis"):
        rows += measure_redis()
    if arguments.only in (None, "kafka"):
        with Bench() as bench:
            rows += measure_source(bench)
            rows += measure_loads(bench, arguments.rates, arguments.seconds)
    if arguments.only in (None, "memory"):
        with Bench() as bench:
            rows += measure_memory(bench)
    caveats = (
        "values are JSON orders; a key of 10 bytes and two headers of the user's beside them",
        "broker, Redis, load and sidecar share the machine: CPU is more where other work runs",
        "resident memory is that of the process, read when it has settled",
    )
    Report(("what", "figure", "how"), rows, caveats).show()


# --- Redis


def json_value(value_bytes: int) -> bytes:
    """An order with as many lines as fit."""
    chance = random.getrandbits
    lines = [
        {"sku": f"{chance(32):08X}", "quantity": 1 + chance(2), "price": chance(16) / 100}
        for _ in range(value_bytes // 40)
    ]
    order = {"order_id": str(uuid.UUID(int=chance(128))), "customer": f"C{chance(27):09d}", "items": lines}
    return json.dumps(order).encode().ljust(value_bytes)[:value_bytes]


def random_value(value_bytes: int) -> bytes:
    """Bytes that can't be packed, as of what is compressed or encrypted already."""
    return random.randbytes(value_bytes)


def measure_redis() -> Iterator[Measured]:
    """Figures of a chunk, a record, a byte of its value and an id: from fillings with and without ids."""
    small_alone, small_full = filled(json_value, SMALL_BYTES, 1), filled(json_value, SMALL_BYTES, FULL)
    large_alone, large_full = filled(json_value, LARGE_BYTES, 1), filled(json_value, LARGE_BYTES, FULL)
    for name, alone, full in (("200", small_alone, small_full), ("1,000", large_alone, large_full)):
        yield Measured(
            f"Redis bytes per record of {name} bytes", f"{alone:.0f}; {full:.0f}", f"1; {FULL} records to a chunk"
        )
    for made, what in ((json_value, "JSON"), (random_value, "random")):
        eight = filled(made, SMALL_BYTES, 8)
        yield Measured(f"Redis bytes per record of 200 bytes, {what}", f"{eight:.0f}", "8 records to a chunk")
    step = LARGE_BYTES - SMALL_BYTES
    alone_share, full_share = (large_alone - small_alone) / step, (large_full - small_full) / step
    first = small_alone - SMALL_BYTES * alone_share  # a chunk and its first record, without the value
    record = (small_full * FULL - first - SMALL_BYTES * (alone_share + (FULL - 1) * full_share)) / (FULL - 1)
    yield Measured("REDIS_CHUNK", f"{first - record:.0f} B", "of both sizes, one to a chunk")
    yield Measured("REDIS_RECORD", f"{record:.0f} B", "of both sizes, in full chunks")
    yield Measured("REDIS_FIRST", f"{alone_share:.2f}", "of both sizes, one to a chunk")
    yield Measured("REDIS_PACKED", f"{full_share:.2f}", "of both sizes, in full chunks")
    random_alone, random_full = filled(random_value, LARGE_BYTES, 1), filled(random_value, LARGE_BYTES, FULL)
    yield Measured(
        "Redis bytes per record of 1,000 random bytes",
        f"{random_alone:.0f}; {random_full:.0f}",
        f"1; {FULL} to a chunk",
    )
    for count, without in ((1, small_alone), (FULL, small_full)):
        more = filled(json_value, SMALL_BYTES, count, with_id=True) - without
        yield Measured("REDIS_ID", f"{more:.0f} B", f"36 bytes of an id each, {count} to a chunk")


def filled(value: Callable[[int], bytes], value_bytes: int, in_chunk: int, with_id: bool = False) -> float:
    """Redis bytes per record of a fresh server with one chunk a block, over the hours of a day."""
    count = CHUNKS_OF_ONE if in_chunk == 1 else CHUNKS_FULL * FULL
    with overflow.Bench() as bench:
        for number, start in enumerate(range(0, count, in_chunk), start=1):
            due_in_ms = (3 + number % SPREAD_HOURS) * HOUR_MS
            block = [
                held_with(make_record(offset, due_in_ms), value(value_bytes), with_id)
                for offset in range(start, min(start + in_chunk, count))
            ]
            bench.overflow.apply([Change(LANE, number, block)], NOW_MS)
        return (used_memory(bench.client) - bench.base) / count


def held_with(held: Held, value: bytes, with_id: bool) -> Held:
    """A record with this value and perhaps an id."""
    return held._replace(value=value, trailer=[(ID, new_id())] if with_id else [])


# --- Kafka's disk, and the processor


def segments(bench: Bench) -> list[Path]:
    """Files of the broker's log, without indexes."""
    return list((bench.path / "kafka" / "log").glob("*/*.log"))


def log_bytes(bench: Bench, topic: str) -> int:
    """Bytes of a topic's log segments on the broker's disk, without its indexes."""
    return sum(path.stat().st_size for path in segments(bench) if path.parent.name.rpartition("-")[0] == topic)


def measure_source(bench: Bench) -> Iterator[Measured]:
    """Records as a producer with the client's default settings sends them: not compressed, here one to a batch."""
    sizes = {}
    for value_bytes, message_id in ((SMALL_BYTES, b""), (LARGE_BYTES, b""), (SMALL_BYTES, new_id())):
        topic = f"{SOURCE}-lone-{value_bytes}{'-id' if message_id else ''}"
        bench.topics(topic)
        producer: Any = Producer(
            {"bootstrap.servers": bench.kafka.bootstrap, "batch.num.messages": "1", "linger.ms": "0"}
        )
        headers = request_headers(HOUR_MS, TARGET) + ([(ID, message_id)] if message_id else [])
        for number in range(LONE_RECORDS):
            producer.produce(topic, random_value(value_bytes), b"C%09d" % number, headers=headers)
        producer.flush()
        sizes[value_bytes, bool(message_id)] = log_bytes(bench, topic) / LONE_RECORDS
        bench.delete(topic)
    lone = sizes[SMALL_BYTES, False]
    yield Measured(
        "SOURCE_RECORD", f"{lone - SMALL_BYTES:.0f} B", "beside the value: batch, key, four headers; no compression"
    )
    yield Measured("bytes per record of 1,000 bytes in the source", f"{sizes[LARGE_BYTES, False]:.0f}", "the same")
    yield Measured("SOURCE_ID", f"{sizes[SMALL_BYTES, True] - lone:.0f} B", "the header of an id of 36 bytes")


@dataclass(frozen=True, slots=True)
class Load:
    """One load, and what it took."""

    rate: int
    seconds: int
    count: int
    blocks: int
    ledger_bytes: int
    target_bytes: int
    others: dict[str, int]  # bytes of the brokers' own topics
    cores: float


def measure_loads(bench: Bench, rates: list[int], seconds: int) -> Iterator[Measured]:
    """Ledger, targets and processor, at two rates; with ids at one between them, at which all go through Redis."""
    bench.topics(TARGET)
    idle = run_load(bench, 0, seconds)
    low, high = (run_load(bench, rate, seconds) for rate in rates)
    named = run_load(bench, NAMED_RATE, seconds, with_id=True)
    for load in (idle, low, high, named):
        yield Measured(
            f"at {load.rate:,} records/s{' with ids' if load is named else ''}",
            f"{load.cores:.3f} cores, {load.blocks:,} blocks",
            f"{load.count:,} records; ledger {load.ledger_bytes:,} B, target {load.target_bytes:,} B, {load.others}",
        )
    record, block = solved((low.count, low.blocks, low.ledger_bytes), (high.count, high.blocks, high.ledger_bytes))
    yield Measured("LEDGER_RECORD", f"{record:.0f} B", f"from both rates, {PARTITIONS} partitions")
    yield Measured("LEDGER_BLOCK", f"{block:.0f} B", "from both rates; batch and transaction's marker included")
    named_bytes = named.ledger_bytes - named.blocks * block - named.count * record
    yield Measured("LEDGER_ID", f"{named_bytes / named.count:.0f} B", "ids of 36 bytes, taken in and settled")
    yield Measured(
        "TARGET_RECORD", f"{low.target_bytes / low.count - SMALL_BYTES:.0f} B", "beside the value; lz4, the lower rate"
    )
    yield Measured("CPU_IDLE", f"{idle.cores:.3f} cores", "nobody sends anything")
    per_s, markers = solved((low.rate, 1, low.cores - idle.cores), (high.rate, 1, high.cores - idle.cores))
    yield Measured("CPU_RECORD", f"{per_s * 1e6:.0f} us", "through Redis and back, from both rates")
    yield Measured("CPU_INTERVALS", f"{markers:.3f} cores", "20 transactions a second")


def solved(low: tuple[float, float, float], high: tuple[float, float, float]) -> tuple[float, float]:
    """(x, y) of two equations `a x + b y = c`."""
    (a, b, c), (d, e, f) = low, high
    determinant = a * e - b * d
    return (c * e - b * f) / determinant, (a * f - c * d) / determinant


def run_load(bench: Bench, rate: int, seconds: int, with_id: bool = False) -> Load:
    """A fresh group under a steady load; CPU is that of the load's second half, when records come in and go out."""
    name = f"load-{rate}{'-id' if with_id else ''}"
    source, ledger = f"{SOURCE}-{name}", f"tickover.{name}.ledger"
    bench.topics(source)
    before = sizes_of(bench)
    with bench.sidecar(name, horizon="1s") as sidecar:
        sidecar.wait_ready()
        filler = Filler(bench.kafka.bootstrap, source, TARGET, with_ids=with_id)
        started_s, sent, cpu_s, half_s = time.monotonic(), 0, sidecar.cpu_s(), 0.0
        while (passed_s := time.monotonic() - started_s) < seconds:
            if not half_s and passed_s > seconds / 2:
                half_s, cpu_s = passed_s, sidecar.cpu_s()
            for number in range(sent, int(passed_s * rate)):
                filler.send(number, time.time_ns() // 1_000_000, random.randint(*SHORT_DELAYS_MS))
            sent = int(passed_s * rate)
            time.sleep(0.005)
        cores = (sidecar.cpu_s() - cpu_s) / (time.monotonic() - started_s - half_s)
        filler.flush()
        wait_until(lambda: not rate or sidecar.count("emitted") >= sent, TIMEOUT_S, "all are settled")
        sidecar.stop()
    after = sizes_of(bench)
    grown = {topic: size - before.get(topic, 0) for topic, size in after.items() if size > before.get(topic, 0)}
    bench.delete(source)
    blocks = records_in(bench, ledger) if rate else 0
    others = {topic: size for topic, size in grown.items() if topic.startswith("__")}
    return Load(rate, seconds, sent, blocks, grown.get(ledger, 0), grown.get(TARGET, 0), others, cores)


def sizes_of(bench: Bench) -> dict[str, int]:
    """Bytes on disk of all topics."""
    topics = {path.parent.name.rpartition("-")[0] for path in segments(bench)}
    return {topic: log_bytes(bench, topic) for topic in topics}


def records_in(bench: Bench, topic: str) -> int:
    """Committed records of a topic, without the marks of transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bench.kafka.bootstrap,
            "group.id": "sizing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
    )
    consumer.subscribe([topic])
    count, quiet = 0, 0
    while quiet < 5:
        got = consumer.consume(10_000, 1.0)
        count += sum(1 for message in got if message.error() is None)
        quiet = 0 if got or not consumer.assignment() else quiet + 1
    consumer.close()
    return count


# --- memory of the sidecar


def measure_memory(bench: Bench) -> Iterator[Measured]:
    """Resident bytes of a sidecar with nothing, with many partitions, with a full wheel, and after a backlog."""
    bench.topics(TARGET)
    first, wide = f"{SOURCE}-first", f"{SOURCE}-wide"
    bench.topics(first)
    with bench.sidecar("memory") as sidecar:
        empty = settled_memory(sidecar)
    bench.admin.create_topics([NewTopic(wide, WIDE_PARTITIONS, 1)])[wide].result()
    with bench.sidecar("memory") as sidecar:
        partitions = settled_memory(sidecar)
    bench.delete(wide)
    yield Measured("MEMORY_BASE", f"{empty / MEGABYTE:.0f} MB", f"{PARTITIONS} partitions, nothing held")
    yield Measured(
        "MEMORY_PARTITION",
        f"{(partitions - empty) / WIDE_PARTITIONS / 1e3:.0f} kB",
        f"{WIDE_PARTITIONS} partitions more",
    )
    with bench.sidecar("memory", horizon="10m") as sidecar:
        yield from measure_wheel(bench, sidecar, first)
    yield from measure_backlog(bench)
    yield from measure_trickle(bench)


def measure_wheel(bench: Bench, sidecar: Sidecar, source: str) -> Iterator[Measured]:
    """Records that all stay in the wheel while it is looked at."""
    empty = settled_memory(sidecar)
    paced(Filler(bench.kafka.bootstrap, source, TARGET), WHEEL_RECORDS, WHEEL_RATE, lambda: WHEEL_DELAY_MS)
    wait_until(lambda: sidecar.count("accepted") >= WHEEL_RECORDS, TIMEOUT_S, "all are in the wheel")
    full = settled_memory(sidecar)
    yield Measured(
        "MEMORY_RECORD",
        f"{(full - empty) / WHEEL_RECORDS - SMALL_BYTES:.0f} B",
        f"beside a value of 200 bytes; {WHEEL_RECORDS:,} records",
    )
    bench.delete(source)


def measure_backlog(bench: Bench) -> Iterator[Measured]:
    """Resident bytes that reading many at once leaves with the process, and Redis bytes of blocks that waited."""
    source, count = f"{SOURCE}-backlog", BACKLOG_RECORDS
    bench.topics(source)
    with bench.sidecar("backlog") as sidecar:
        empty = settled_memory(sidecar)
    Filler(bench.kafka.bootstrap, source, TARGET).fill(count, int(time.time() * 1000), lambda: 3 * HOUR_MS)
    with InRedis(bench) as redis, bench.sidecar("backlog") as sidecar:
        wait_until(lambda: bench.committed("backlog", source) >= count, TIMEOUT_S, "all are in Redis")
        full, in_redis = sidecar.memory_bytes(), redis.more()
    yield Measured(
        "MEMORY_BACKLOG", f"{(full - empty) / MEGABYTE:.0f} MB", f"{count:,} records that waited, read at once"
    )
    yield Measured("Redis bytes per record of it", f"{in_redis / count:.0f}", "one delay for all")
    bench.delete(source)


def measure_trickle(bench: Bench) -> Iterator[Measured]:
    """Redis bytes of records that come in one by one: chunks have few records."""
    source = f"{SOURCE}-trickle"
    bench.topics(source)
    with InRedis(bench) as redis, bench.sidecar("trickle") as sidecar:
        sidecar.wait_ready()
        paced(Filler(bench.kafka.bootstrap, source, TARGET), TRICKLE_RECORDS, TRICKLE_RATE, lambda: 3 * HOUR_MS)
        wait_until(lambda: bench.committed("trickle", source) >= TRICKLE_RECORDS, TIMEOUT_S, "all are in Redis")
        in_redis = redis.more()
    yield Measured(
        f"Redis bytes per record at {TRICKLE_RATE} records/s",
        f"{in_redis / TRICKLE_RECORDS:.0f}",
        f"{PARTITIONS} partitions, one delay for all",
    )
    bench.delete(source)


def paced(filler: Filler, count: int, rate: int, delay_ms: Callable[[], int]) -> None:
    """Send so many records at a steady rate; returns when all are acknowledged."""
    started_s = time.monotonic()
    for number in range(count):
        filler.send(number, time.time_ns() // 1_000_000, delay_ms())
        time.sleep(max(number / rate - (time.monotonic() - started_s), 0.0))
    filler.flush()


class InRedis:
    """Bytes that the benchmark's Redis takes more than when this was made."""

    def __init__(self, bench: Bench) -> None:
        self._client: Any = Redis.from_url(bench.valkey.url, protocol=2)
        self._before = used_memory(self._client)

    def __enter__(self) -> "InRedis":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def more(self) -> int:
        """Bytes."""
        return used_memory(self._client) - self._before


if __name__ == "__main__":
    main()
