"""How long pages of the console take with much held, and what near records notice of ten consoles that are open.

    python -m benchmarks.console [--records 1000000] [--letters 100000] [--seconds 30]

Records are held for a day in Redis, letters lie in one dead-letter topic. A page's time is that of its HTML. An open
console asks for its page each 2 s, as its live parts do. The baseline of lateness is the same near records while no
console is open, in the same run.
"""

import argparse
import random
import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.harness import SOURCE, Bench, BenchmarkError, Report, Sidecar, wait_until
from benchmarks.listing import HOUR_MS, SPREAD_MS, TIMEOUT_S, near_records
from benchmarks.redrive import LETTERS, fill
from benchmarks.traffic import Filler, Reader, lateness

CONSOLES: Final = 10
REFRESH_S: Final = 2.0
TIMES: Final = 9
ANSWER_S: Final = 60.0
PAGES: Final = {
    "overview": "/ui",
    "held messages": "/ui/messages",
    "held messages of one target": "/ui/messages?target=bench-target",
    "held messages by a key prefix that one in 1,000 has": "/ui/messages?key_prefix=C000000",
    "held messages by an id that nobody has": "/ui/messages?id=nobody",
    "failure groups": "/ui/failures",
    "dead letters": f"/ui/dead-letters?topic={LETTERS}",
    "dead letters by a key": f"/ui/dead-letters?topic={LETTERS}&key=C000000007",
    "forecast": "/ui/forecast",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    count: int = options.records
    target, group = "bench-target", "console"
    with Bench() as bench:
        bench.topics(SOURCE, target, LETTERS)
        fill(bench.kafka.bootstrap, options.letters)
        filler = Filler(bench.kafka.bootstrap, SOURCE, target)
        with bench.sidecar(group) as sidecar, Reader(bench.kafka.bootstrap, target) as reader:
            sidecar.wait_ready()
            first_s = taken(sidecar, PAGES["overview"])
            filler.fill(count, int(time.time() * 1000), lambda: HOUR_MS + random.randrange(SPREAD_MS))
            wait_until(lambda: bench.committed(group, SOURCE) >= count, TIMEOUT_S, "all records are in Redis")
            read = reading(sidecar)
            times = {name: [taken(sidecar, path) for _ in range(TIMES)] for name, path in PAGES.items()}
            quiet = near_records(filler, sidecar, options.seconds, 0, lambda: None)
            with consoles(sidecar):
                watched = near_records(filler, sidecar, options.seconds, quiet, lambda: None)
            arrivals = sorted(reader.read(quiet + watched), key=lambda arrival: arrival.due_ms)  # while it still emits
            sidecar.stop()
    rows = [("overview, the first page of the process, nothing held", f"{first_s * 1000:.0f} ms", "")]
    rows.append(("failure groups, the first page of the process", f"{read[0] * 1000:.0f} ms", ""))
    rows.append(("all pages until each letter was read", f"{sum(read):.1f} s", f"{len(read)} pages"))
    rows += [
        (name, f"{statistics.median(taken_s) * 1000:.0f} ms", f"{max(taken_s) * 1000:.0f} ms at most")
        for name, taken_s in times.items()
    ]
    for name, some in (("baseline: near records, no console", arrivals[:quiet]), ("ten open", arrivals[quiet:])):
        late = lateness(some)
        rows.append((name, f"p50 {late.p50_ms} ms, p99 {late.p99_ms} ms", f"{late.max_ms} ms at most"))
    caveats = (
        f"{count:,} records held, due over a day from an hour on; {options.letters:,} letters; medians of {TIMES}",
        "one replica; broker, Redis and load share the machine",
    )
    Report(("what", "figure", ""), rows, caveats).show()


def reading(sidecar: Sidecar) -> list[float]:
    """Seconds of each page of failure groups until all letters are read, asked for as a page does that goes on."""
    found: list[float] = []
    left: re.Match[bytes] | None = None
    while left is not None or not found:
        taken_s, page = asked(sidecar, PAGES["failure groups"], {"Console-Left": left[1].decode()} if left else {})
        found.append(taken_s)
        left = re.search(rb'"Console-Left": "(\d+)"', page)
    return found


def taken(sidecar: Sidecar, path: str) -> float:
    """Seconds of one page."""
    return asked(sidecar, path, {})[0]


def asked(sidecar: Sidecar, path: str, headers: dict[str, str]) -> tuple[float, bytes]:
    """Seconds of one page, and the page."""
    began_s = time.perf_counter()
    with urllib.request.urlopen(
        urllib.request.Request(f"{sidecar.url}{path}", headers=headers), timeout=ANSWER_S
    ) as answer:
        page = answer.read()
    taken_s = time.perf_counter() - began_s
    if b"</html>" not in page:
        raise BenchmarkError(f"{path} is no page")
    return taken_s, page


@contextmanager
def consoles(sidecar: Sidecar) -> Iterator[None]:
    """Ten overviews are open."""
    closed = threading.Event()
    failures: list[BaseException] = []

    def look(number: int) -> None:
        try:
            closed.wait(REFRESH_S * number / CONSOLES)
            while not closed.wait(REFRESH_S):
                taken(sidecar, PAGES["overview"])
        except (OSError, BenchmarkError) as error:
            failures.append(error)

    people = [threading.Thread(target=look, args=(number,)) for number in range(CONSOLES)]
    for person in people:
        person.start()
    try:
        yield
    finally:
        closed.set()
        for person in people:
            person.join()
    if failures:
        raise BenchmarkError(f"a console got no page: {failures[0]}")


if __name__ == "__main__":
    main()
