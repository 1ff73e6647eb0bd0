"""CPU time of deciding alone, without Kafka's client: from records that were read to what is held of them.

    python -m benchmarks.deciding [--records 20000] [--rounds 9]

A delay and an absolute time have the headers of a reminder, a retry those that a consumer forwards after its second
failure: two of the user's own, what tickover wrote on the delivery before, and the error. Time is process time, of the
best round. The baseline is what no decision can leave out: to read headers, timestamp, key and value of each record,
and to make one tuple to hold.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

from benchmarks.harness import Report
from policies.headers import (
    ATTEMPT,
    DELAY,
    DELIVER_AT,
    DUE,
    ERROR_CLASS,
    ERROR_MESSAGE,
    FIRST_FAILURE,
    ORIGIN,
    POLICY,
    TARGET,
)
from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.engine.intake.decide import Decider, HeaderLimits
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.record import Headers, Held, Position, TopicPartition

STAMP_MS: Final = 1_700_000_000_000
RUN: Final = 500  # records of one lane at a time
LIMITS: Final = HeaderLimits(headers_max=64, header_bytes_max=16_384, quarantine="quarantine")
TARGETS: Final = {"orders": 4, "mail": 4}
POLICIES: Final[Sequence[dict[str, Any]]] = (
    {
        "name": "orders-retry",
        "match": {"topics": ["orders-retry"]},
        "retry": {
            "attempts": 5,
            "backoff": {"kind": "exponential", "initial": "1s", "factor": 2, "max": "10m", "jitter": "full"},
            "give_up_on": ["*.ValidationError"],
        },
        "target": {"topic": "orders", "allow": ["orders"]},
        "dead_letter": {"topic": "orders-dlq"},
    },
    {
        "name": "reminders",
        "match": {"topics": ["reminders"]},
        "delay": {"default": "15m", "max": "400d"},
        "target": {"allow": ["mail"]},
        "dead_letter": {"topic": "reminders-dlq"},
    },
)


class Record:
    """A record as the client gives it; each time with new lists, as there."""

    __slots__ = ("_headers", "_stamp", "_value")

    def __init__(self, headers: Headers, number: int) -> None:
        self._headers = headers
        self._stamp = (1, STAMP_MS + number)
        self._value = b"%0200d" % number

    def timestamp(self) -> tuple[int, int]:
        return self._stamp

    def headers(self) -> Headers:
        return list(self._headers)

    def key(self) -> bytes:
        return b"customer-7"

    def value(self) -> bytes:
        return self._value


def delay_of(number: int) -> Headers:
    return [("trace", b"4bf92f"), (DELAY, b"90s"), (TARGET, b"mail")]


def time_of(number: int) -> Headers:
    return [("trace", b"4bf92f"), (DELIVER_AT, b"%d" % (STAMP_MS + 60_000 + number)), (TARGET, b"mail")]


def retry_of(number: int) -> Headers:
    return [
        ("trace", b"4bf92f"),
        ("tenant", b"north"),
        (ORIGIN, b"orders-retry/1/%d" % number),
        (DUE, b"%d" % (STAMP_MS - 5 + number)),
        (POLICY, b"orders-retry@1"),
        (ATTEMPT, b"2"),
        (FIRST_FAILURE, b"%d" % (STAMP_MS - 5_000 + number)),
        (ERROR_CLASS, b"shop.payment.Timeout"),
        (ERROR_MESSAGE, b"no answer for order %d within 5 s" % number),
    ]


KINDS: Final[Sequence[tuple[str, str, Callable[[int], Headers]]]] = (
    ("a delay, remembered", "reminders", delay_of),
    ("an absolute time", "reminders", time_of),
    ("a retry of nine headers", "orders-retry", retry_of),
)


def table() -> PolicyTable:
    """The policies, as their topic has them."""
    versions = [Versioned(Policy.model_validate(content), 1, "me", 0, "api") for content in POLICIES]
    return PolicyTable(1, MappingProxyType({one.policy.name: one for one in versions}))


def decided_ns(topic: str, records: Sequence[Any], policies: PolicyTable) -> int:
    """CPU time of deciding all, in runs of one lane."""
    decider = Decider(LIMITS, TARGETS, lambda version: policies)
    lane = SourcePartition(TopicPartition(topic, 1), Wheel(STAMP_MS), PromotionWindows(Position(0, 0)))
    started = time.process_time_ns()
    for first in range(0, len(records), RUN):
        run = records[first : first + RUN]
        held, others, named = decider.decide_run(lane, run, range(first, first + len(run)), policies, STAMP_MS)
        if len(held) != len(run):
            raise SystemExit(f"{topic}: {others or named} instead of held records")
    return time.process_time_ns() - started


def read_ns(records: Sequence[Record]) -> int:
    """CPU time of reading all and making one tuple of each."""
    new, held = tuple.__new__, []
    started = time.process_time_ns()
    for offset, record in enumerate(records):
        headers, (_, stamp_ms) = record.headers(), record.timestamp()
        fields = (
            stamp_ms, offset, "mail", -1, record.key(), record.value(), headers, "", None, 0, -1, (), -1, "", 0, -1,
        )  # fmt: skip
        held.append(new(Held, fields))
    return time.process_time_ns() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    policies = table()
    rows = []
    for name, topic, headers_of in KINDS:
        records = [Record(headers_of(number), number) for number in range(options.records)]
        # In turns, so that a slow moment of the machine is in both.
        rounds = [(decided_ns(topic, records, policies), read_ns(records)) for _ in range(options.rounds)]
        decided, read = (min(column) / options.records / 1e3 for column in zip(*rounds, strict=True))
        rows.append((name, f"{decided:.2f}", f"{read:.2f}"))
    Report(
        ("what", "us of CPU a record", "baseline: read and one tuple"),
        rows,
        ("records are objects in Python: Kafka's client, in C, makes headers anew for each record",),
    ).show()


if __name__ == "__main__":
    main()
