"""From a real run of the sidecar to tables: every record sent is there once, however often the job was killed."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sidecar.model.fingerprint import fingerprint
from tests.services.kafka import Kafka
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, headers_of
from tests.services.spark import spark_settings
from tests.services.waiting import wait_until
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

POLICIES = """
name: reminders
match: {topics: ["~reminders"]}
delay: {default: 150ms}
target: {topic: ~mail}
dead_letter: {topic: ~reminders-dlq}
---
name: orders-retry
match: {topics: ["~orders-retry"]}
retry: {attempts: 2, backoff: {kind: fixed, delay: 100ms}, give_up_on: ["*.Fatal"]}
"""
SOURCES = ("reminders", "orders-retry")
START_S = 400.0
TRIES = 3  # to kill the job before it has ended: a busy machine may be late with it
FAR_MS = 5_000  # beyond the horizon, also where a record is read late
KILLED_AT = "silver/blocks/batch=0/_SUCCESS"  # half of silver is still to be written


class Run:
    """Records sent to a sidecar, and what must have become of each, by topic and offset."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.expected: dict[tuple[str, int], tuple[str, str | None, int]] = {}

    def send(self, role: str, outcome: str, reason: str | None, attempt: int, headers: dict[str, str]) -> None:
        report = self.site.send(self.site.name(role), [(name, text.encode()) for name, text in headers.items()])
        offset = report.offset()
        assert offset is not None
        self.expected[self.site.name(role), offset] = (outcome, reason, attempt)


@pytest.fixture(scope="module")
def run(new_site: Callable[[], Site]) -> Iterator[Run]:
    """A sidecar that has settled all it was sent, and has ended."""
    site = new_site()
    site.policies(POLICIES)
    for role in SOURCES:
        site.topic(role)
    for role in ("mail", "reminders-dlq", "orders", "orders-dlq"):
        site.target(role)
    sidecar = site.sidecar().start()
    run = Run(site)
    for _ in range(5):
        run.send("reminders", "emitted", None, 0, {})
        run.send("reminders", "emitted", None, 0, {"tickover-delay": f"{FAR_MS}ms"})  # by way of the overflow
        run.send("reminders", "dead", "expired", 0, {"tickover-expires-at": str(now_ms() - 60_000)})
        run.send("reminders", "quarantined", "bad_header", 0, {"tickover-delay": "soon"})
        run.send("orders-retry", "emitted", None, 2, {"tickover-error-class": "shop.Timeout"})
        run.send("orders-retry", "dead", "not_retryable", 1, {"tickover-error-class": "shop.Fatal"})
        run.send("orders-retry", "dead", "attempts_exhausted", 3, {"tickover-attempt": "3"})

    def settled() -> int:
        return sum(sum(topic.get(word, 0) for word in OUTCOMES) for topic in sidecar.stats()["topics"].values())

    wait_until(lambda: settled() == len(run.expected), otherwise=lambda: f"{settled()}: {sidecar.last_words()}")
    assert sidecar.stop() == 0
    yield run
    site.close()


OUTCOMES = ("emitted", "dead", "quarantined")


def ingest_command(run: Run, root: Path) -> list[str]:
    command = [sys.executable, "-m", "sidecar", "pipeline", "ingest", "--warehouse", str(root)]
    command += ["--bootstrap-servers", run.site.kafka.bootstrap, "--group", run.site.group]
    for role in SOURCES:
        command += ["--topic", run.site.name(role)]
    for name, value in spark_settings().items():
        command += ["--spark", f"{name}={value}"]
    return command


def killed_when_there_is(place: Path, command: list[str], log: Path) -> bool:
    """Run the command and kill it, with all it started, once the file is there; False when it has ended by then."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            wait_until(lambda: place.exists() or process.poll() is not None, START_S, log.read_text)
            assert place.exists(), log.read_text()
            return process.poll() is None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def take_in(warehouse: Any, kafka: Kafka, run: Run, *more: str) -> Any:
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace

    topics = [run.site.name(role) for role in (*SOURCES, *more)]
    return ingest(warehouse, KafkaPlace(kafka.bootstrap), f"tickover.{run.site.group}.ledger", topics)


def tables(warehouse: Any) -> dict[str, Counter[Any]]:
    from pipeline.ingest.ingest import SILVER

    return {name: Counter(map(tuple, warehouse.read(name, schema).collect())) for name, schema in SILVER.items()}


def test_a_killed_job_run_again_leaves_the_same_tables(
    kafka: Kafka, run: Run, new_warehouse: Callable[..., Any], tmp_path: Path
) -> None:
    whole = new_warehouse("whole")
    for number in range(TRIES):
        killed = new_warehouse(f"killed-{number}")
        root = Path(killed.root)
        if killed_when_there_is(root / KILLED_AT, ingest_command(run, root), tmp_path / "job.log"):
            break
    else:
        pytest.fail("the job had always ended")
    assert take_in(killed, kafka, run).undecodable == 0
    take_in(whole, kafka, run)
    found = tables(killed)
    assert found == tables(whole)
    assert sum(found["silver/lifecycle"].values()) == len(run.expected)


def test_every_record_is_in_the_lifecycle_once(kafka: Kafka, run: Run, warehouse: Any) -> None:
    from pipeline.ingest.lifecycle import LIFECYCLE

    came = take_in(warehouse, kafka, run)
    assert came.settled == dict(Counter(outcome for outcome, _, _ in run.expected.values()))
    assert came.entries >= 1
    rows = warehouse.read("silver/lifecycle", LIFECYCLE).collect()
    assert len(rows) == len(run.expected)
    assert {(row.topic, row.offset): (row.outcome, row.reason, row.attempt) for row in rows} == run.expected
    for row in rows:
        assert row.source_known
        assert row.origin == f"{row.topic}/0/{row.offset}"
        assert row.accepted_ms <= row.settled_ms
        if row.outcome == "emitted":
            assert row.lateness_ms >= 0
    errors = {row.error_class for row in rows if row.topic.endswith("orders-retry")}
    assert errors == {"shop.Timeout", "shop.Fatal", None}
    kinds = {row.error_class: row.fingerprint for row in rows}
    assert kinds == {
        "shop.Timeout": fingerprint("shop.Timeout", ""),
        "shop.Fatal": fingerprint("shop.Fatal", ""),
        None: None,
    }
    assert {row.tier for row in rows if row.due_ms - row.accepted_ms == FAR_MS} >= {"overflow"}


def test_a_run_reconciles_and_repeats_itself_in_a_backtest(kafka: Kafka, run: Run, warehouse: Any) -> None:
    from pipeline import jobs
    from pipeline.ingest.lifecycle import LIFECYCLE

    take_in(warehouse, kafka, run, "mail", "orders")
    came = jobs.reconcile(warehouse, "")
    assert (came["faults"], came["findings"]) == ({}, [])
    assert came["records"] == {"settled": len(run.expected)}
    assert set(came["targets"]) == {run.site.name("mail"), run.site.name("orders")}
    # Somebody sends an emitted record once more.
    copied = kafka.read(run.site.name("mail"), 1)[0]
    kafka.produce(run.site.name("mail"), [(copied.key(), copied.value(), copied.headers())])
    take_in(warehouse, kafka, run, "mail", "orders")
    [finding] = jobs.reconcile(warehouse, "")["findings"]
    origin = dict(headers_of(copied))["tickover-origin"]
    named = (finding["kind"], f"{finding['topic']}/{finding['partition']}/{finding['offset']}")
    assert (named[0], named[1].encode()) == ("repeated", origin)
    policies = POLICIES.replace("~", f"{run.site.group}-")
    [same] = jobs.backtest(warehouse, [run.site.name("orders-retry")], {"same": policies})["policies"]
    rows = warehouse.read("silver/lifecycle", LIFECYCLE).where("topic LIKE '%orders-retry'").collect()
    live = Counter(row.outcome for row in rows)
    assert (same["deliveries"], same["rescued"], same["dead"]) == (live["emitted"], live["emitted"], live["dead"])
    assert same["recorded"] == same["same"] == len(rows)
