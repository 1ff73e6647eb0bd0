"""Looks at all that tickover needs: brokers, topics, policies, Redis, clocks. Writes no record."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from sidecar.doctor.facts import Finding, Severity
from sidecar.doctor.kafka import inspect_kafka
from sidecar.doctor.redis import inspect_redis
from sidecar.settings.settings import Settings

__all__ = ["Finding", "Severity", "examine"]

DEADLINE_S: Final = 10.0

Inspection = Callable[[Settings, Callable[[], int]], Iterator[Finding]]
INSPECTIONS: Final[dict[str, Inspection]] = {"brokers": inspect_kafka, "redis": inspect_redis}


def wall_ms() -> int:
    """Time by the clock of this machine, epoch milliseconds."""
    return time.time_ns() // 1_000_000


def examine(settings: Settings) -> list[Finding]:
    """All findings, Kafka's first, within `DEADLINE_S`. A part that hangs or breaks is a finding, not the end."""
    results: dict[str, list[Finding]] = {name: [] for name in INSPECTIONS}
    threads = {
        name: threading.Thread(target=_collect, args=(name, settings, results[name]), daemon=True)
        for name in INSPECTIONS
    }
    for thread in threads.values():
        thread.start()
    end_s = time.monotonic() + DEADLINE_S
    findings: list[Finding] = []
    for name, thread in threads.items():
        thread.join(max(0.0, end_s - time.monotonic()))
        late = thread.is_alive()
        findings += list(results[name])
        if late:
            what = f"not all was inspected within {DEADLINE_S:g} s"
            findings.append(Finding(Severity.ERROR, name, what, "look at the network in between, then repeat"))
    return findings


def _collect(name: str, settings: Settings, into: list[Finding]) -> None:
    try:
        into.extend(INSPECTIONS[name](settings, wall_ms))
    except Exception as error:  # noqa: BLE001 - the doctor must report, whatever it meets
        what = f"the inspection broke: {type(error).__name__}: {error}"
        into.append(Finding(Severity.ERROR, name, what, "see whether a newer tickover mends it, else report it"))
