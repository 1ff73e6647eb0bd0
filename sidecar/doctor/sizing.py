"""How much Redis, Kafka, memory and CPU a load takes: a formula over constants that a benchmark measured.

`size` is pure. Each `Term` is one constant of the formula, and `docs/how-to/size-it.md` has them all. Where nobody can
know, the worse is reckoned with: delays that differ (chunks in Redis are small then), values that producers don't
compress, and one process that is away.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from policies.errors import FormatError
from policies.retention import MARGIN_MS
from sidecar.overflow.chunk import RECORDS_MAX
from sidecar.overflow.keys import COARSE, FINE
from sidecar.settings.settings import DAY_MS, Settings

COUNT_MAX: Final = 10**15
RATE_MAX_PER_S: Final = 10**9
TARGET_RETENTION_MS: Final = 7 * DAY_MS  # Kafka's own default
PARTITIONS_DEFAULT: Final = 12
REPLICATION_FACTOR_DEFAULT: Final = 3
VALUE_BYTES_DEFAULT: Final = 200

REDIS_USED_MAX: Final = 0.75  # of maxmemory: above it the alert TickoverRedisMemory fires
REDIS_HOST_SHARE: Final = 0.6  # of its host's memory: a rewrite of the append-only file needs the rest
FINE_UNTIL_MS: Final = 2 * COARSE.slot_ms  # about: what is due sooner goes into slots of a minute
CORES_PLANNED: Final = 0.5  # of a process: the engine's thread has one core, and a burst or a rebuild needs room

_COUNT: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,9}))?([kMG]?)")
_SUFFIXES: Final = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_PER_S: Final = {"s": 1, "m": 60, "h": 3_600}


class Term(NamedTuple):
    """A constant of the formula: what it is of, and which part of `benchmarks.sizing` measured it."""

    value: float
    unit: str
    what: str
    part: str


REDIS_CHUNK: Final = Term(514, "B", "a chunk: records of one block for one slot", "redis")
REDIS_RECORD: Final = Term(29, "B", "a record in its chunk, its key and two headers, packed", "redis")
REDIS_FIRST: Final = Term(0.24, "", "share of its value that is left where a record is alone in its chunk", "redis")
REDIS_PACKED: Final = Term(0.2, "", "share of a value that is left in a full chunk, of JSON", "redis")
REDIS_ID: Final = Term(82, "B", "an id of 36 bytes: in its record's chunk, and in the index", "redis")
SOURCE_RECORD: Final = Term(197, "B", "a record in its source beside the value, alone in its batch", "kafka")
SOURCE_ID: Final = Term(49, "B", "the header of an id", "kafka")
LEDGER_RECORD: Final = Term(4, "B", "a record in the ledger: taken in, and settled", "kafka")
LEDGER_ID: Final = Term(48, "B", "its id there", "kafka")
LEDGER_BLOCK: Final = Term(337, "B", "a block of the ledger with its batch and the transaction's marker", "kafka")
TARGET_RECORD: Final = Term(87, "B", "a record in its target beside the value, with tickover's headers", "kafka")
MEMORY_BASE: Final = Term(118e6, "B", "a process with nothing held", "memory")
MEMORY_PARTITION: Final = Term(76e3, "B", "a source partition", "memory")
MEMORY_RECORD: Final = Term(906, "B", "a record in the wheel beside its value", "memory")
MEMORY_BACKLOG: Final = Term(
    1_194e6, "B", "reading a backlog of a million records, which stays with the process", "memory"
)
CPU_IDLE: Final = Term(0.07, "cores", "a process that nobody sends anything", "kafka")
CPU_INTERVALS: Final = Term(0.173, "cores", "a transaction in each settle interval", "kafka")
CPU_RECORD: Final = Term(30e-6, "core s", "a record through Redis and back", "kafka")


def parse_count(text: str) -> int:
    """A whole number of `250000`, `250k`, `1M`, `1.5M` or `2G`. Raises FormatError."""
    found = _COUNT.fullmatch(text)
    if found is None:
        raise FormatError("not a number (write 250000, 250k, 1M or 1.5M)", text)
    whole, fraction, suffix = found[1], found[2] or "", found[3]
    scale: int = 10 ** len(fraction)
    count, rest = divmod(int(whole + fraction) * _SUFFIXES[suffix], scale)
    if rest or not 1 <= count <= COUNT_MAX:
        raise FormatError(f"must be a whole number from 1 to {COUNT_MAX}", text)
    return count


def parse_rate(text: str) -> float:
    """Records a second of `200/s`, `5k/m` or `0.5M/h`. Raises FormatError, also without a unit."""
    number, _, unit = text.partition("/")
    if unit not in _PER_S:
        raise FormatError("not a rate (write 200/s, 5k/m or 1M/h)", text)
    rate = parse_count(number) / _PER_S[unit]
    if rate > RATE_MAX_PER_S:
        raise FormatError(f"a rate is at most {RATE_MAX_PER_S}/s", text)
    return rate


def parse_share(text: str) -> float:
    """A number from 0 to 1 of `25%` or `0.25`. Raises FormatError."""
    digits = text.removesuffix("%")
    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?", digits):
        raise FormatError("not a share (write 25% or 0.25)", text)
    share = float(digits) / (100 if text.endswith("%") else 1)
    if share > 1:
        raise FormatError("a share is at most 1, or 100%", text)
    return share


@dataclass(frozen=True, slots=True)
class Load:
    """The load of all sources together. `rate` is records a second on average, each attempt of a retry counted."""

    rate: float
    delay_ms: int  # the longest hold
    pending: int  # held at once; 0: as many as there can be, `rate` for all of `delay_ms`
    value_bytes: int = VALUE_BYTES_DEFAULT
    id_share: float = 0.0  # of records with a `tickover-id`, 0 to 1
    packed: float = REDIS_PACKED.value  # share of a value that zstd leaves of it among others, 0 to 1
    same_delay: bool = False  # all wait alike, so that records of a block share a chunk
    partitions: int = PARTITIONS_DEFAULT  # of all sources
    replicas: int = 0  # processes; 0: as many as are advised
    replication_factor: int = REPLICATION_FACTOR_DEFAULT
    retention_ms: int = 0  # of sources; 0: `delay_ms` and the margin
    target_retention_ms: int = TARGET_RETENTION_MS

    def __post_init__(self) -> None:
        """Raises FormatError where a source would lose what is held."""
        if self.retention_ms and self.retention_ms < self.delay_ms:
            raise FormatError("the retention of sources can't be shorter than the delay", self.retention_ms)

    @property
    def held(self) -> float:
        """Records held at once, on average where it follows from the rate."""
        return self.pending or self.rate * self.delay_ms / 1_000


class Need(NamedTuple):
    """One line: how much of what, in `unit` ("B", "cores" or "" for a number), and how it is reckoned."""

    part: str
    what: str
    amount: float
    unit: str
    formula: str


def size(load: Load, settings: Settings) -> list[Need]:
    """All that the load needs, with the limits and intervals of these settings; bytes are whole."""
    needs = chain(
        redis_needs(load, settings),
        kafka_needs(load, settings),
        process_needs(load, settings, load.replicas or replicas_advised(load)),
    )
    return [need._replace(amount=math.ceil(need.amount)) if need.unit == "B" else need for need in needs]


def redis_needs(load: Load, settings: Settings) -> Iterator[Need]:
    """Memory of Redis. A chunk has what one block brings for one slot, so its cost is shared by few at low rates."""
    slots = 1.0 if load.same_delay else slots_of(load.delay_ms)
    block = load.rate * settings.settle_interval_ms / 1_000 / load.partitions
    in_chunk = min(max(block / slots, 1.0), RECORDS_MAX)
    of_chunk = REDIS_CHUNK.value + max(REDIS_FIRST.value - load.packed, 0) * load.value_bytes
    of_record = REDIS_RECORD.value + load.packed * load.value_bytes + of_chunk / in_chunk
    records, ids = load.held * of_record, load.held * load.id_share * REDIS_ID.value
    maxmemory = (records + ids) / REDIS_USED_MAX
    chunk = f"(REDIS_CHUNK + (REDIS_FIRST - packed) x value) / {in_chunk:.1f} records in a chunk"
    formula = f"pending {load.held:,.0f} x {of_record:,.0f} B: REDIS_RECORD + packed x value + {chunk}"
    yield Need("redis", "held records", records, "B", formula)
    yield Need("redis", "index of ids", ids, "B", f"pending x {load.id_share:.0%} with an id x REDIS_ID")
    yield Need("redis", "maxmemory", maxmemory, "B", f"both / {REDIS_USED_MAX}, where an alert fires")
    yield Need("redis", "memory of its host", maxmemory / REDIS_HOST_SHARE, "B", f"maxmemory / {REDIS_HOST_SHARE}")


def slots_of(delay_ms: int) -> float:
    """Slots over which delays up to this one spread: minutes of the next two hours, hours after them."""
    return max(1.0, min(delay_ms, FINE_UNTIL_MS) / FINE.slot_ms, delay_ms / COARSE.slot_ms)


def kafka_needs(load: Load, settings: Settings) -> Iterator[Need]:
    """Disk of all brokers. Retention keeps all that came in that time, long after it was emitted."""
    ledger_ms = load.delay_ms + MARGIN_MS
    source_ms = load.retention_ms or ledger_ms
    in_source, in_ledger = (max(load.rate * kept_ms / 1_000, load.held) for kept_ms in (source_ms, ledger_ms))
    in_target = load.rate * load.target_retention_ms / 1_000
    of_id = load.id_share * SOURCE_ID.value
    source = _on_disk(in_source, source_ms, load.value_bytes + SOURCE_RECORD.value + of_id)
    ledger = _on_disk(in_ledger, ledger_ms, LEDGER_RECORD.value + load.id_share * LEDGER_ID.value)
    target = _on_disk(in_target, load.target_retention_ms, load.value_bytes + TARGET_RECORD.value + of_id)
    blocks = min(2 * in_ledger, load.partitions * ledger_ms / settings.settle_interval_ms)
    needs = (
        ("source topics", source.bytes, f"{source.text}: value + SOURCE_RECORD + ids"),
        (
            "ledger",
            ledger.bytes + blocks * LEDGER_BLOCK.value,
            f"{ledger.text}: LEDGER_RECORD + ids; and {blocks:,.0f} blocks x LEDGER_BLOCK",
        ),
        ("target topics", target.bytes, f"{target.text}: value + TARGET_RECORD + ids"),
    )
    factor = load.replication_factor
    for what, amount, formula in needs:
        yield Need("kafka", what, amount * factor, "B", f"{formula}; x {factor} replicas")
    yield Need("kafka", "all", sum(amount for _, amount, _ in needs) * factor, "B", "the three together")


class _OnDisk(NamedTuple):
    """Bytes of one copy of some records, and how they are reckoned."""

    bytes: float
    text: str


def _on_disk(records: float, kept_ms: int, record_bytes: float) -> _OnDisk:
    text = f"{records:,.0f} records in {kept_ms / DAY_MS:.3g} d x {record_bytes:,.0f} B"
    return _OnDisk(records * record_bytes, text)


def replicas_advised(load: Load) -> int:
    """Processes of which one may be away, while each of the others takes at most `CORES_PLANNED`."""
    for_records = CORES_PLANNED - CPU_IDLE.value - CPU_INTERVALS.value
    return max(math.ceil(load.rate * CPU_RECORD.value / for_records), 1) + 1


def process_needs(load: Load, settings: Settings, replicas: int) -> Iterator[Need]:
    """Memory and CPU of the sidecar's processes. Each is reckoned as if one of the others were away."""
    working = max(replicas - 1, 1)
    horizon_s, wheel = settings.horizon_ms / 1_000, settings.wheel
    base = MEMORY_BASE.value + math.ceil(load.partitions / working) * MEMORY_PARTITION.value
    near = min(load.held, load.rate * horizon_s) / working
    usual, most = min(near, wheel.records_max), min(load.held / working, wheel.records_max)
    values = (min(records * load.value_bytes, wheel.bytes_max) for records in (usual, most))
    memory, limit = (
        base + records * MEMORY_RECORD.value + of_values
        for records, of_values in zip((usual, most), values, strict=True)
    )
    cores = CPU_IDLE.value + CPU_INTERVALS.value + load.rate * CPU_RECORD.value / working
    formula = "MEMORY_BASE + partitions x MEMORY_PARTITION + {:,.0f} records x (MEMORY_RECORD + value)"
    yield Need("sidecar", "memory of a process", memory, "B", f"{formula.format(usual)}: due within {horizon_s:.0f} s")
    yield Need(
        "sidecar", "memory limit of a process", limit + MEMORY_BACKLOG.value, "B",
        f"{formula.format(most)} + MEMORY_BACKLOG: all due at once, up to `wheel.records_max`",
    )  # fmt: skip
    yield Need(
        "sidecar", "CPU of a process", cores, "cores",
        f"CPU_IDLE + CPU_INTERVALS + {load.rate:g} records/s x CPU_RECORD / {working} at work",
    )  # fmt: skip
    advised = replicas_advised(load)
    yield Need("sidecar", "replicas", advised, "", f"so that with one away none takes over {CORES_PLANNED} cores")
    yield Need("sidecar", "source partitions at least", max(advised, replicas), "", "one a replica")


def shown(amount: float, unit: str) -> str:
    """An amount for people, rounded up to three digits: `1.23 GB`, `0.18 cores`, `2`."""
    if unit != "B":
        return f"{_rounded_up(amount, 2):,.10g} {unit}".strip()
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= factor:
            scaled = amount / factor
            return f"{_rounded_up(scaled, max(2 - int(math.log10(scaled)), 0)):,.10g} {prefix}B"
    return f"{math.ceil(amount):,} B"


def _rounded_up(number: float, places: int) -> float:
    """Up, but not for what a float has too much."""
    scale: int = 10**places
    return math.ceil(round(number * scale, 6)) / scale
