"""How long a page of held messages takes, a look-up, a forecast, and what near records notice of it.

    python -m benchmarks.listing [--records 1000000] [--seconds 10]

Records are held for a day in Redis. The baseline of the times is a page where nothing is held, in the same run; that of
lateness is the same near records while nobody looks.
"""

import argparse
import json
import random
import statistics
import time
import urllib.error
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.harness import SOURCE, Bench, BenchmarkError, Report, Sidecar, wait_until
from benchmarks.traffic import Filler, Reader, lateness
from policies.headers import DELAY, ID, TARGET
from sidecar.kafka.client_settings import producer_settings

HOUR_MS: Final = 3_600_000
SPREAD_MS: Final = 24 * HOUR_MS
NEAR_MS: Final = 50
NEAR_INTERVAL_S: Final = 0.01
TIMEOUT_S: Final = 600.0
NAMED: Final = "one-of-many"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    count: int = options.records
    target, group = "bench-target", "listing"
    with Bench() as bench:
        bench.topics(SOURCE, target)
        filler = Filler(bench.kafka.bootstrap, SOURCE, target)
        with (
            bench.sidecar(group, guarantee="at_least_once") as sidecar,
            Reader(bench.kafka.bootstrap, target) as reader,
        ):
            sidecar.wait_ready()
            empty_s = timed(sidecar, "/v1/messages?limit=500")
            send_named(bench.kafka.bootstrap, target)
            filler.fill(count, int(time.time() * 1000), lambda: HOUR_MS + random.randrange(SPREAD_MS))
            wait_until(lambda: bench.committed(group, SOURCE) > count, TIMEOUT_S, "all records are in Redis")
            middle_ms = int(time.time() * 1000) + 12 * HOUR_MS
            questions = {
                "first page of 500": "/v1/messages?limit=500",
                "a page of 500 from the middle": f"/v1/messages?limit=500&due_from={middle_ms}",
                "a page by a key prefix that one in 1,000 has": "/v1/messages?limit=500&key_prefix=C000000",
                "one message by its id": f"/v1/messages/{NAMED}",
                "forecast of an hour": "/v1/forecast",
            }
            times = {name: timed(sidecar, path) for name, path in questions.items()}
            quiet = near_records(filler, sidecar, options.seconds, 0, lambda: None)
            pages = iter(lambda: questions["a page of 500 from the middle"], "")
            asked = near_records(filler, sidecar, options.seconds, quiet, lambda: sidecar.get(next(pages)))
            arrivals = sorted(reader.read(quiet + asked), key=lambda arrival: arrival.due_ms)  # while it still emits
            sidecar.stop()
    before, during = lateness(arrivals[:quiet]), lateness(arrivals[quiet:])
    rows = [("baseline: a page where nothing is held", f"{empty_s * 1000:.0f} ms")]
    rows += [(name, f"{taken_s * 1000:.0f} ms") for name, taken_s in times.items()]
    for name, late in (("baseline: near records, nobody looks", before), ("near records, page after page", during)):
        rows.append((name, f"late by {late.p50_ms} ms in the median, {late.p99_ms} ms p99, {late.max_ms} ms at most"))
    caveats = (
        f"{count:,} records held, due over a day from an hour on; medians of 9",
        "one replica; broker, Redis and load share the machine",
    )
    Report(("what", "figure"), rows, caveats).show()


def send_named(bootstrap: str, target: str) -> None:
    """One message with an id among the many."""
    producer: Any = Producer(producer_settings({"bootstrap.servers": bootstrap}))
    headers = [(DELAY, b"9h"), (TARGET, target.encode()), (ID, NAMED.encode())]
    producer.produce(SOURCE, b"value", b"key", headers=headers)
    if producer.flush(60):
        raise BenchmarkError("the message with an id was not acknowledged")


def timed(sidecar: Sidecar, path: str) -> float:
    """Seconds of one request, the median of nine."""

    def once() -> float:
        started_s = time.perf_counter()
        document = sidecar.get(path)
        taken_s = time.perf_counter() - started_s
        if document.get("partial"):
            raise BenchmarkError(f"{path} is partial: {json.dumps(document['missing'])}")
        return taken_s

    return statistics.median(once() for _ in range(9))


def near_records(filler: Filler, sidecar: Sidecar, seconds: float, first: int, meanwhile: Callable[[], Any]) -> int:
    """Send near records for a while, and do something else between them; returns how many."""
    end_s = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < end_s:
        filler.send(first + sent, int(time.time() * 1000), NEAR_MS)
        filler.flush()
        sent += 1
        try:
            meanwhile()
        except urllib.error.URLError as error:
            raise BenchmarkError(f"no answer: {error}") from error
        time.sleep(NEAR_INTERVAL_S)
    sidecar.check()
    return sent


if __name__ == "__main__":
    main()
