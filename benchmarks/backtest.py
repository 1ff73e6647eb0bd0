"""Whether `backtest` decides as the live engine did, record for record.

    python -m benchmarks.backtest [--records 1000000] [--seed 1] [--jars DIRECTORY]

Random failures and requests, good ones and bad ones, go through a real sidecar that settles them by its policies. Then
`ingest` takes ledger and sources into tables, and `backtest` decides each record again under the same policies. Every
decision must be the ledger's: outcome, due time to the millisecond, target, policy, attempt and reason. The baseline is
the same backtest under policies with one wait changed, which must differ. `--jars`: where Spark's Kafka connector is;
else topics are read in Python.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.harness import Bench, BenchmarkError, Report, Sidecar, wait_until
from benchmarks.pipeline import SPARK, timed
from policies.headers import ATTEMPT, DELAY, DELIVER_AT, ERROR_CLASS, EXPIRES_AT, FIRST_FAILURE, ID, SPREAD, TARGET
from sidecar.kafka.client_settings import producer_settings
from sidecar.model.record import Headers

FAILED: Final = "bench-orders-retry"
ASKED: Final = "bench-reminders"
TARGETS: Final = (
    "bench-orders",
    "bench-orders-dlq",
    "bench-mail",
    "bench-mail-2",
    "bench-mail-dlq",
    "bench-reminders-dlq",
)
ABSENT: Final = "bench-mail-3"  # allowed, and not there
GROUP: Final = "backtest"
OUTCOMES: Final = ("emitted", "dead", "quarantined")
POLICIES: Final = """\
name: gold
match: {topics: ["bench-orders-retry"], headers: {tenant: gold}}
retry:
  attempts: 5
  backoff: {kind: exponential, initial: 100ms, factor: 2, max: 6s, jitter: full}
  timeout: 1h
  give_up_on: ["*.Fatal", "shop.Broken*"]
  spread: 500ms
---
name: others
match: {topics: ["bench-*-retry"]}
retry: {attempts: 3, backoff: {kind: list, delays: [50ms, 1s, 4s], jitter: equal}, retry_on: ["shop.*", "java.*"]}
target: {topic: bench-orders, allow: ["bench-mail*"]}
---
name: reminders
match: {topics: ["bench-reminders"]}
delay: {default: 2s, max: 1h, spread: 1s, spread_max: 5s}
target: {topic: bench-mail, allow: ["bench-mail*"]}
"""
OTHER_POLICIES: Final = POLICIES.replace("4s", "5s")
CLASSES: Final = (b"shop.Timeout", b"shop.Fatal", b"shop.BrokenPipe", b"java.io.IOException", b"Strange", b"", b"\xff")
HOUR_MS: Final = 3_600_000
FULL_S: Final = 0.1
FLUSH_S: Final = 120.0
SETTLED_S: Final = 3_600.0


def failure(chance: random.Random, number: int, now_ms: int) -> Headers:
    """Headers of a failed record, as a consumer writes them: mostly good ones, sometimes bad ones."""
    headers: Headers = [("trace-id", b"%032x" % chance.getrandbits(128))]
    share = chance.random
    if share() < 0.7:
        headers.append(("tenant", chance.choice((b"gold", b"silver", b"Gold"))))
    if share() < 0.9:
        headers.append((ERROR_CLASS, chance.choice(CLASSES)))
    if share() < 0.8:
        headers.append(
            (ATTEMPT, b"%d" % chance.randint(1, 7) if share() < 0.97 else chance.choice((b"0", b"-1", b"x")))
        )
    if share() < 0.6:
        headers.append((FIRST_FAILURE, b"%d" % (now_ms - chance.randrange(2 * HOUR_MS))))
    if share() < 0.05:
        headers.append((TARGET, chance.choice((b"bench-mail", b"bench-orders", b"elsewhere", b"bench-orders-retry"))))
    if share() < 0.05:
        headers.append((DELAY, chance.choice((b"200ms", b"1.5s", b"soon"))))
    return _more(headers, chance, number, now_ms)


def request(chance: random.Random, number: int, now_ms: int) -> Headers:
    """Headers of a producer's request: mostly good ones, sometimes bad ones."""
    headers: Headers = [("content-type", b"application/json")]
    share = chance.random
    if share() < 0.6:
        headers.append((DELAY, b"%dms" % chance.randrange(8_000) if share() < 0.95 else b"2h"))
    elif share() < 0.5:
        headers.append((DELIVER_AT, b"%d" % (now_ms + chance.randrange(-HOUR_MS, 8_000))))
    if share() < 0.4:
        headers.append((TARGET, chance.choice((b"bench-mail", b"bench-mail-2", ABSENT.encode(), b"not allowed"))))
    if share() < 0.1:
        headers.append((SPREAD, chance.choice((b"0s", b"3s", b"1m", b"wide"))))
    return _more(headers, chance, number, now_ms)


def _more(headers: Headers, chance: random.Random, number: int, now_ms: int) -> Headers:
    if chance.random() < 0.1:
        headers.append((ID, b"id-%d" % number))
    if chance.random() < 0.1:  # before it is due, or while it is held
        headers.append((EXPIRES_AT, b"%d" % (now_ms + chance.choice((-HOUR_MS, 0, 1_000, 4_000)))))
    if chance.random() < 0.02:
        headers.append(chance.choice(headers))  # a control header twice is refused
    return headers


def fill(bootstrap: str, count: int, seed: int) -> None:
    """Produce the records, a half to each topic, at their own times."""
    producer: Any = Producer(producer_settings({"bootstrap.servers": bootstrap}))
    chance = random.Random(seed)
    for number in range(count):
        now_ms = time.time_ns() // 1_000_000
        topic, made = ((FAILED, failure), (ASKED, request))[number % 2]
        headers = made(chance, number, now_ms)
        while True:
            try:
                producer.produce(topic, b"value", b"C%09d" % number, headers=headers)
                break
            except BufferError:
                producer.poll(FULL_S)
        producer.poll(0)
    if producer.flush(FLUSH_S):
        raise BenchmarkError("not all records were acknowledged")


def settle(bench: Bench, count: int, seed: int) -> dict[str, int]:
    """Have a sidecar settle the records; by outcome how many."""
    (bench.path / "policies.yaml").write_text(POLICIES)
    bench.topics(FAILED, ASKED, *TARGETS)
    with bench.sidecar(GROUP, horizon="1s") as sidecar:
        wait_until(sidecar.is_up, SETTLED_S, "the sidecar answers")
        fill(bench.kafka.bootstrap, count, seed)
        wait_until(lambda: sum(counts(sidecar).values()) >= count, SETTLED_S, "all are settled")
        return counts(sidecar)


def counts(sidecar: Sidecar) -> dict[str, int]:
    """Records settled so far, by outcome."""
    return {name: sidecar.count(name) for name in OUTCOMES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jars", type=Path)
    arguments = parser.parse_args()
    count: int = arguments.records
    from pipeline import jobs
    from pipeline.ingest.ingest import ingest
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.session import spark_session
    from pipeline.warehouse.tables import Warehouse

    with Bench() as bench:
        settled_s, _, outcomes = timed(lambda: settle(bench, count, arguments.seed))
        jars = {"spark.jars": ",".join(map(str, arguments.jars.glob("*.jar")))} if arguments.jars else {}
        warehouse = Warehouse(spark_session(SPARK | jars), str(bench.path / "tables"))
        place, ledger = KafkaPlace(bench.kafka.bootstrap), f"tickover.{GROUP}.ledger"
        taken_s, taken_cpu_s, came = timed(lambda: ingest(warehouse, place, ledger, [FAILED, ASKED]))
        files = {"live": POLICIES, "other": OTHER_POLICIES}
        replayed_s, replayed_cpu_s, result = timed(lambda: jobs.backtest(warehouse, [FAILED, ASKED], files))
        warehouse.spark.stop()
    rows = {row["policies"]: (row["recorded"], row["same"]) for row in result["policies"]}
    if came.settled != {name: number for name, number in outcomes.items() if number} or rows["live"][0] != count:
        raise BenchmarkError(f"{count} records, settled {outcomes}, in the tables {came.settled}, compared {rows}")
    report = [(name, f"{recorded:,}", f"{same:,}", f"{same / recorded:.4%}") for name, (recorded, same) in rows.items()]
    caveats = (
        ", ".join(f"{number:,} {name}" for name, number in outcomes.items()) + f"; seed {arguments.seed}",
        f"sent and settled in {settled_s:.0f} s; taken in in {taken_s:.0f} s, {taken_cpu_s:.0f} s CPU",
        f"both backtests in {replayed_s:.0f} s, {replayed_cpu_s:.0f} s CPU",
        "live: the policies of the run; other: one of them with one wait changed",
    )
    Report(("policies", "decided by the engine", "decided alike", "share"), report, caveats).show()
    if rows["live"][1] != count:
        raise BenchmarkError(f"{count - rows['live'][1]} decisions differ")
    if rows["other"][1] >= count:
        raise BenchmarkError("other policies made no difference: nothing was compared")


if __name__ == "__main__":
    main()
