"""A loss in Redis, a loss, a repeat and an early one in the ledger: each put into a real run, and found by name."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from sidecar.cli.app import app
from sidecar.ledger.block import NO_ENTRIES, NOTHING_SETTLED, decode, encode
from sidecar.model.record import Outcome, Position, TopicPartition
from sidecar.overflow.redis_overflow import open_overflow
from tests.services.kafka import Kafka
from tests.services.sidecar_process import now_ms
from tests.services.site import Site
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: reminders
match: {topics: ["~reminders"]}
delay: {default: 100ms}
target: {topic: ~mail}
"""
HOURS = (5, 30, 100)  # each in a slot of its own
EMITTED = 4
Found = list[tuple[str, int]]


@pytest.fixture(scope="module")
def site(new_site: Callable[[], Site]) -> Iterator[Site]:
    """A run that has ended: four records emitted, then three held in Redis."""
    site = new_site()
    site.policies(POLICIES)
    source = site.topic("reminders")
    site.target("mail")
    sidecar = site.sidecar().start()

    def counts() -> dict[str, Any]:
        return dict(sidecar.stats()["topics"].get(source, {"emitted": 0}))

    for hours in HOURS:
        site.send(source, [("tickover-delay", f"{hours}h".encode())])
    # Not as the process counts them, which may be about to put them there: it lets go of these when it stops.
    with closing(open_overflow(site.redis_url, site.group)) as overflow:
        lane = TopicPartition(source, 0)
        wait_until(lambda: overflow.count(lane, Position(-1, -1)) == len(HOURS), otherwise=sidecar.last_words)
    for _ in range(EMITTED):
        site.send(source)
    wait_until(lambda: counts()["emitted"] == EMITTED, otherwise=sidecar.last_words)
    assert sidecar.stop() == 0
    yield site
    site.close()


def export(site: Site, out: Path) -> str:
    settings = {"group": site.group, "redis.url": site.redis_url, "kafka.bootstrap_servers": site.kafka.bootstrap}
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    ended = CliRunner().invoke(app, ["overflow", "export", "--out", str(out), *given])
    assert ended.exit_code == 0, ended.stderr
    assert "held records" in ended.stderr
    return str(out)


def test_what_was_put_into_a_run_is_found_by_name(kafka: Kafka, site: Site, warehouse: Any, tmp_path: Path) -> None:
    from pipeline import jobs
    from pipeline.errors import PipelineError

    whole = export(site, tmp_path / "whole.jsonl")
    take_in(warehouse, kafka, site)
    states = {"settled": EMITTED, "held": len(HOURS)}
    assert judged(warehouse, whole) == (states, [])

    lost_in_redis(site, whole, 1)
    after = export(site, tmp_path / "after.jsonl")
    *rows, last = Path(after).read_text().splitlines(keepends=True)
    foreign = rows[0].replace('"offset": 0,', '"offset": 99,')
    Path(after).write_text("".join([*rows, foreign, last.replace('"records": 2', '"records": 3')]))
    assert judged(warehouse, after) == (states, [("missing_in_overflow", 1), ("unknown_in_overflow", 99)])
    Path(after).write_text("".join(rows))  # it was cut off
    for export_file, said in ((after, "no whole export"), (f"{after}.gone", "no export: .* Path does not exist")):
        with pytest.raises(PipelineError, match=said):
            jobs.reconcile(warehouse, export_file)

    first = EMITTED + len(HOURS)
    forged(kafka, site, first)
    with pytest.raises(PipelineError, match="younger than the tables"):
        jobs.reconcile(warehouse, export(site, tmp_path / "younger.jsonl"))
    take_in(warehouse, kafka, site)
    states, found = judged(warehouse)
    assert states == {"settled": EMITTED, "held": len(HOURS), "repeated": 1, "lost": 1}
    assert found == [("early", first), ("lost", first + 1), ("repeated", EMITTED)]


def take_in(warehouse: Any, kafka: Kafka, site: Site) -> None:
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace

    ingest(warehouse, KafkaPlace(kafka.bootstrap), f"tickover.{site.group}.ledger", [site.name("reminders")])


def judged(warehouse: Any, exported: str = "") -> tuple[dict[str, int], Found]:
    from pipeline import jobs

    came = jobs.reconcile(warehouse, exported)
    return came["records"], [(row["kind"], row["offset"]) for row in came["findings"]]


def lost_in_redis(site: Site, whole: str, offset: int) -> None:
    """Redis forgets the slot of this record, chunk and header, as if it had never been written."""
    rows = map(json.loads, Path(whole).read_text().splitlines())
    due_ms = next(row["due_ms"] for row in rows if row.get("offset") == offset)
    with Redis.from_url(site.redis_url, protocol=2) as redis:
        [lane] = [key.decode() for key in redis.scan_iter(match=f"{{{site.group}:*:hw")]
        slots = lane.removesuffix("hw") + "b"
        assert redis.zremrangebyscore(slots, due_ms, due_ms) == 1
        assert redis.delete(f"{slots}:{due_ms // 3_600_000}") == 1


def forged(kafka: Kafka, site: Site, first: int) -> None:
    """A block behind the lane's last one that no engine should write: of two more records the first is early and the
    second is lost, and one is settled again."""
    for _ in range(2):
        site.send(site.name("reminders"))
    ledger = f"tickover.{site.group}.ledger"
    last = max(kafka.read_all(ledger), key=lambda message: decode(message.value()).written_ms)
    settled = NOTHING_SETTLED._replace(
        offsets=[EMITTED, first],
        dues_ms=[0, now_ms() + 3_600_000],
        outcomes=[Outcome.DEAD, Outcome.EMITTED],
        in_overflow=[0, 0],
        policies=["reminders@1"] * 2,
        targets=["reminders-dlq", "mail"],
        attempts=[0, 0],
    )
    block = decode(last.value())
    block = replace(block, number=0, low=first + 2, runs=(), settled=settled, entries=NO_ENTRIES, carried=NO_ENTRIES)
    kafka.produce(ledger, [(last.key(), encode(block), [], 0, last.partition())])
