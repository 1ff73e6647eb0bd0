"""Finding the held records behind failed deliveries.

A delivery report carries topic, key and value, but neither headers nor a mark of ours, and keeping a closure per
message would cost more than all of emission's own work. Failures are rare, so the records are found by content. Where
only some of several records with the same content failed, nobody can say which: all of them are emitted again, which
repeats a record rather than lose one.
"""

from collections import defaultdict
from typing import Any

from sidecar.engine.commit.interval import CommitInterval, Failure
from sidecar.engine.partition.partition import SourcePartition
from sidecar.model.record import Diverted, Held

Content = tuple[str, bytes | None, bytes | None]
Found = tuple[SourcePartition, Held | Diverted]


def take_failed(generation: CommitInterval) -> list[tuple[Failure, list[Found]]]:
    """Take the records that failed out of a complete generation: one failure for each content, with its records."""
    failures: dict[Content, Failure] = {}
    for failure in generation.failures:
        failures.setdefault(_produced(failure.message), failure)
    found: dict[Content, list[Found]] = defaultdict(list)
    for lane, batch, _ in generation.batches:
        for held in batch:
            if (content := (held.target, held.key, held.value)) in failures:
                found[content].append((lane, held))
    for lane, departure in generation.departures:
        if (content := (departure.topic, departure.key, departure.value)) in failures:
            found[content].append((lane, departure))
    assert len(found) == len(failures), "a delivery report for a record that was not sent in this generation"
    generation.batches = [
        (lane, [held for held in batch if (held.target, held.key, held.value) not in failures], at_ms)
        for lane, batch, at_ms in generation.batches
    ]
    generation.departures = [
        (lane, departure)
        for lane, departure in generation.departures
        if (departure.topic, departure.key, departure.value) not in failures
    ]
    return [(failure, found[content]) for content, failure in failures.items()]


def _produced(message: Any) -> Content:
    return message.topic(), message.key(), message.value()
