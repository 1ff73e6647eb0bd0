"""Dead letters sent again without a limit of rate: from the order to run until the last transaction is committed.

    python -m benchmarks.redrive [--records 200000]

The baseline, in the same run: consume and produce on. That each letter arrived once is counted by a reader of
committed records.
"""

import argparse
import json
import time
import urllib.request
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.harness import PARTITIONS, Bench, BenchmarkError, Report, Sidecar, wait_until
from benchmarks.traffic import values
from policies.headers import REDRIVE_SOURCE
from sidecar.kafka.client_settings import producer_settings

LETTERS: Final = "bench-target-dlq"
TARGET: Final = "bench-target-again"
BASELINE: Final = "bench-target-baseline"
TIMEOUT_S: Final = 180.0
QUIET_S: Final = 20.0
POLL_EVERY: Final = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    count: int = parser.parse_args().records
    with Bench() as bench:
        bench.topics(LETTERS, TARGET, BASELINE)
        fill(bench.kafka.bootstrap, count)
        with bench.child(
            "benchmarks.passthrough", bench.kafka.bootstrap, "baseline", LETTERS, BASELINE, str(count)
        ) as child:
            bench.wait_for_group("baseline", child)
            began_s = time.monotonic()
            child.process.wait(TIMEOUT_S)
            baseline = count / (time.monotonic() - began_s)
        with bench.sidecar("redrive") as sidecar:
            sidecar.wait_ready()
            planned, sent, cpu_us = redrive(sidecar, count)
        check(bench.kafka.bootstrap, count)
    rows = [
        ("consume and produce on", f"{baseline:,.0f}", "", ""),
        ("planned: read and counted", f"{planned:,.0f}", f"{planned / baseline:.2f}", ""),
        ("redriven, in transactions", f"{sent:,.0f}", f"{sent / baseline:.2f}", f"{cpu_us:.1f}"),
    ]
    caveats = (
        f"{count:,} letters of 200 bytes in {PARTITIONS} partitions; progress is looked at every 100 ms",
        "the baseline's time begins when it has its partitions, and ends with its process",
        "CPU is of the whole process, its idle engine included",
    )
    Report(("what", "letters/s", "of the baseline", "CPU us each"), rows, caveats).show()


def fill(bootstrap: str, count: int) -> None:
    """Dead letters as a retry policy leaves them."""
    producer: Any = Producer(producer_settings({"bootstrap.servers": bootstrap}))
    value = values()
    for number in range(count):
        place = b"orders-retry/0/%d" % number
        headers = [
            ("trace-id", b"4bf92f3577b34da6"),
            ("tickover-origin", place),
            ("tickover-due", b"1800000000000"),
            ("tickover-policy", b"orders@1"),
            ("tickover-attempt", b"6"),
            ("tickover-first-failure", b"1800000000000"),
            ("tickover-error-class", b"java.io.IOException"),
            ("tickover-error-message", b"no route to 10.0.0.%d" % (number % 250)),
            ("tickover-reason", b"attempts_exhausted"),
            ("tickover-source", place),
        ]
        producer.produce(LETTERS, next(value), b"C%09d" % number, headers=headers)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise BenchmarkError("not all letters were acknowledged")


def redrive(sidecar: Sidecar, count: int) -> tuple[float, float, float]:
    """Letters planned and sent a second, and microseconds of processor for each sent."""
    asked = {"topic": LETTERS, "target": TARGET, "confirm_all": True, "rate": 0, "watch": 0}
    began_s = time.monotonic()
    plan = post(sidecar, "", asked)["id"]
    wait_until(lambda: sidecar.get(f"/v1/redrives/{plan}")["state"] == "planned", TIMEOUT_S, "it is planned")
    planned_s, cpu_s = time.monotonic() - began_s, sidecar.cpu_s()
    began_s = time.monotonic()
    post(sidecar, f"/{plan}/run", None)
    wait_until(lambda: sidecar.get(f"/v1/redrives/{plan}")["state"] == "done", TIMEOUT_S, "it is done")
    sent_s = time.monotonic() - began_s
    return count / planned_s, count / sent_s, (sidecar.cpu_s() - cpu_s) / count * 1e6


def post(sidecar: Sidecar, path: str, body: object) -> Any:
    """One order."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{sidecar.url}/v1/redrives{path}", data, headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def check(bootstrap: str, count: int) -> None:
    """Each letter once, as a reader of committed records sees it."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
    seen: set[bytes] = set()
    total, quiet_s = 0, time.monotonic()
    while total < count and time.monotonic() - quiet_s < QUIET_S:
        for message in consumer.consume(10_000, 1.0):
            total += 1
            quiet_s = time.monotonic()
            seen.add(dict(message.headers() or [])[REDRIVE_SOURCE])  # type: ignore[arg-type]
    consumer.close()
    if (len(seen), total) != (count, count):
        raise BenchmarkError(f"{count} letters, {total} arrived, {len(seen)} of them different")


if __name__ == "__main__":
    main()
