"""Cost of the reference broker's log per megabyte, beside the same bytes through plain file calls.

    python -m benchmarks.broker_log [--megabytes 200] [--rounds 3]

Batches of 16 KB of 200-byte records, as a producer sends them; reads of 1 MB as a consumer's fetch. CPU time of the
process, not time of day, the best of all rounds; files in the page cache, nothing is synced.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.harness import Report
from broker.log.config import LogConfig
from broker.log.loading import open_replica_log
from broker.log.log import Log
from broker.records.batch_validation import RecordRules
from broker.records.records import Record, build_batch
from purgatory.log_offsets import Isolation
from purgatory.partition.replica_log import ReplicaLog

RECORDS: Final = 75
VALUE_BYTES: Final = 200
FETCH_BYTES: Final = 1 << 20
LOOKUPS: Final = 20_000
SEGMENT_BYTES: Final = 64 << 20


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Contest:
    """The log and plain files, the same bytes."""

    def __init__(self, directory: Path, megabytes: int) -> None:
        self.directory = directory
        values = [Record(index, int(time.time() * 1000), None, os.urandom(VALUE_BYTES)) for index in range(RECORDS)]
        self.batch = bytes(build_batch(values))
        self.count = megabytes * (1 << 20) // len(self.batch)
        self.bytes = self.count * len(self.batch)

    def open(self, name: str, *, looks_into_records: bool) -> tuple[Log, ReplicaLog]:
        """A log of its own."""
        rules = RecordRules(looks_into_records=looks_into_records)
        config = LogConfig(rules, segment_bytes=SEGMENT_BYTES)
        return open_replica_log(self.directory / name, config, lambda: time.time() * 1000)

    def append(self, replica: ReplicaLog) -> None:
        """Append all batches as a produce request does behind the wire; each buffer is the request's own."""
        for _ in range(self.count):
            replica.append_as_leader(bytearray(self.batch), 0)
        replica.maybe_increment_high_watermark(replica.log_end)

    def read(self, replica: ReplicaLog) -> None:
        """All of it, as one consumer reads: each fetch begins behind the last whole batch."""
        offset = 0
        per_fetch = FETCH_BYTES // len(self.batch) * RECORDS
        while offset < replica.log_end_offset:
            data, _ = replica.read(offset, FETCH_BYTES, Isolation.HIGH_WATERMARK, min_one_message=True)
            data.records.read()
            offset += min(per_fetch, max(1, data.size // len(self.batch)) * RECORDS)

    def look_up(self, log: Log) -> None:
        """Offsets all over the log."""
        end = log.log_end.offset
        for index in range(LOOKUPS):
            log.locate(index * 7919 % end)

    def plain(self) -> tuple[float, float]:
        """CPU seconds of writing and reading the same bytes without anything round it."""
        descriptor = os.open(self.directory / "plain", os.O_RDWR | os.O_CREAT | os.O_TRUNC)

        def write() -> None:
            for index in range(self.count):
                os.pwrite(descriptor, bytearray(self.batch), index * len(self.batch))

        def read() -> None:
            for position in range(0, self.bytes, FETCH_BYTES):
                os.pread(descriptor, FETCH_BYTES, position)

        try:
            return cpu_s(write), cpu_s(read)
        finally:
            os.close(descriptor)


def measure(megabytes: int) -> dict[str, float]:
    """One round: CPU seconds by what was done."""
    with tempfile.TemporaryDirectory(prefix="tickover-bench-") as directory:
        contest = Contest(Path(directory), megabytes)
        found: dict[str, float] = {}
        found["plain append"], found["plain read"] = contest.plain()
        log, replica = contest.open("trusting", looks_into_records=False)
        found["append, header and CRC only"] = cpu_s(lambda: contest.append(replica))
        found["read"] = cpu_s(lambda: contest.read(replica))
        found["look-up"] = cpu_s(lambda: contest.look_up(log))
        found["recovery"] = cpu_s(lambda: contest.open("trusting", looks_into_records=False))
        _, replica = contest.open("checking", looks_into_records=True)
        found["append, every record checked"] = cpu_s(lambda: contest.append(replica))
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = [measure(arguments.megabytes) for _ in range(arguments.rounds)]
    best = {name: min(found[name] for found in rounds) for name in rounds[0]}
    rows = []
    for name, seconds in best.items():
        if name == "look-up":
            rows.append((name, f"{seconds / LOOKUPS * 1e6:.1f} us each"))
        else:
            rows.append((name, f"{arguments.megabytes / seconds:,.0f} MB/s"))
    Report(
        ("what", "per CPU second"),
        rows,
        (
            "recovery checks the CRC of everything, as after a crash with nothing flushed",
            f"a batch has {RECORDS} records of {VALUE_BYTES} bytes, not compressed",
        ),
    ).show()


if __name__ == "__main__":
    main()
