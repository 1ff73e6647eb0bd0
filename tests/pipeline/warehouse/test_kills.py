"""SIGKILL in the middle of writing: the same job run again leaves the tables of a run that nothing disturbed."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sidecar.model.record import Outcome
from tests.integration.conftest import SOAK
from tests.pipeline.ledger_rows import NOW_MS, block, entries, settled
from tests.services.fatal_files import Death, FatalFiles
from tests.services.kafka import Kafka

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_800)]

DAY_MS = 86_400_000
PARTS = r"rename \S+/_temporary/0/task\S+ "  # what a task has written goes to its place, day by day

# Each run goes on from where the one before was killed. Each takes a start of Spark: CI has time for one of each job,
# `make kills` takes all.
INGEST_DEATHS = (
    Death(r"create \S+/bronze/ledger/batch=0/_temporary/\S+parquet", 2),  # a task has written one day of two
    Death(PARTS + r"\S+/bronze/ledger/batch=0/", 2),  # one day is in its place
    Death(r"rename \S+ \S+/_checkpoints/bronze.ledger/commits/0"),  # the batch counts, and the stream doesn't know
    Death(PARTS + r"\S+/silver/lifecycle/batch=0/", 2),
    Death(r"create \S+/silver/lifecycle/batch=0/_SUCCESS"),  # every row is in its place, and nobody has said so
)
DELTA_DEATHS = (
    Death(r"create \S+/silver/lifecycle/date=\S+parquet", 2),  # a file of the batch is there, and no commit has it
    Death(r"create \S+/silver/lifecycle/date=\S+parquet", 1),
)
COMPACT_DEATHS = (
    Death(PARTS + r"\S+/silver/lifecycle/span-\S+", 2),
    Death(r"rename \S+ \S+/silver/lifecycle/span-\S+/_WHOLE"),
)


@pytest.fixture(scope="module")
def topics(kafka: Kafka) -> tuple[str, str]:
    """(ledger, source): two partitions and two days of blocks, with something for every table."""
    ledger = kafka.topic("ledger", 2, retention_ms=-1)  # its times are of last year
    source = kafka.topic("orders-retry", 1)
    kafka.produce(source, [(b"k", b"value", [("tickover-error-class", b"shop.Timeout")]) for _ in range(8)])
    fill(kafka, ledger, source, 0)
    return ledger, source


def fill(kafka: Kafka, ledger: str, source: str, first: int) -> None:
    """Blocks that settle four records from `first` on; their broker times are on two days, in both partitions."""
    for partition in range(2):
        for day in range(2):
            offset = first + 2 * partition + day
            rows = [(offset, NOW_MS, (Outcome.EMITTED, Outcome.DEAD)[day], 2)]
            value = block(
                topic=source, partition=0, settled=settled(rows), number=offset + 1,
                entries=entries([(100 + offset, NOW_MS)]),
            )  # fmt: skip
            kafka.produce(ledger, [(b"k", one, (), NOW_MS + day * DAY_MS, partition) for one in (value, b"junk")])


def take_in(warehouse: Any, kafka: Kafka, topics: tuple[str, str]) -> Any:
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace

    return ingest(warehouse, KafkaPlace(kafka.bootstrap), topics[0], topics[1:])


def job(name: str, warehouse: Any, *more: str) -> list[str]:
    return [name, "--warehouse", warehouse.root, *more]


def tables(warehouse: Any, source: str) -> dict[str, Counter[str]]:
    """Every row of every table, batch and day included."""
    from pipeline.ingest.ingest import SILVER
    from pipeline.ingest.ledger import LEDGER_RECORD
    from pipeline.ingest.stream import LEDGER_TABLE, records_table
    from pipeline.ingest.topics import RECORDS

    schemas = {**SILVER, LEDGER_TABLE: LEDGER_RECORD, records_table(source): RECORDS}
    return {name: Counter(map(str, warehouse.read(name, schema).collect())) for name, schema in schemas.items()}


@pytest.mark.parametrize("table_format", ["parquet", "delta"] if SOAK else ["parquet"])
def test_ingest_killed_while_it_writes_leaves_the_same_tables(
    kafka: Kafka, topics: tuple[str, str], fatal: FatalFiles, new_warehouse: Callable[..., Any], table_format: str
) -> None:
    from pipeline.warehouse.tables import Warehouse

    deaths = DELTA_DEATHS if table_format == "delta" else INGEST_DEATHS if SOAK else INGEST_DEATHS[1:2]
    killed, whole = new_warehouse("killed"), new_warehouse("whole")
    command = job("ingest", killed, "--bootstrap-servers", kafka.bootstrap, "--ledger", topics[0])
    for death in deaths:
        fatal.die([*command, "--topic", topics[1], "--table-format", table_format], death)
    killed = Warehouse.open(killed.spark, killed.root)
    assert killed.table_format == table_format
    came = take_in(killed, kafka, topics)
    take_in(whole, kafka, topics)
    assert tables(killed, topics[1]) == tables(whole, topics[1])
    assert {name: sum(rows.values()) for name, rows in tables(killed, topics[1]).items()} == {
        "silver/blocks": 8, "silver/entries": 4, "silver/lifecycle": 4, "bronze/ledger": 8,
        f"bronze/records/topic={topics[1]}": 8,
    }  # fmt: skip
    assert came.settled == {"emitted": 2, "dead": 2}


def test_compact_killed_while_it_writes_leaves_the_same_tables(
    kafka: Kafka, topics: tuple[str, str], fatal: FatalFiles, new_warehouse: Callable[..., Any]
) -> None:
    warehouse = new_warehouse()
    take_in(warehouse, kafka, topics)
    fill(kafka, *topics, 4)
    take_in(warehouse, kafka, topics)
    whole = tables(warehouse, topics[1])
    for death in COMPACT_DEATHS if SOAK else COMPACT_DEATHS[:1]:
        fatal.die(job("compact", warehouse), death)
        assert tables(warehouse, topics[1]) == whole
    from pipeline import jobs

    done = jobs.compact(warehouse, 0, 0)
    assert done["silver/lifecycle"]["merged"] == 2
    assert tables(warehouse, topics[1]) == whole
    if SOAK:
        fatal.die(job("compact", warehouse, "--grace", "0s"), Death(r"delete \S+/silver/lifecycle/batch=1"))
    assert tables(warehouse, topics[1]) == whole
    jobs.compact(warehouse, 1 << 50, 0)
    assert tables(warehouse, topics[1]) == whole
    left = [path.name for path in (Path(warehouse.root) / "silver/lifecycle").iterdir()]
    assert [name for name in left if not name.startswith(".")] == [done["silver/lifecycle"]["span"]]
