"""Jobs of schedules: records that one schedule owes, made, cut where they must end, and packed into transactions. Pure.

    due, rising    | made up for |   in time   |
    job            |===========================|    all in one transaction with the progress that says so,
    head, rest     |========|==================|    or part by part, each with a progress of its own

A part says that the rest waits: it is not missed, however long that takes.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from policies.headers import DELIVER_AT, ID, TARGET
from sidecar.model.partitioner import source_partition
from sidecar.operations.jobs.transactional_sender import OutgoingRecord
from sidecar.operations.schedules.owing import Limits, Owed, after_writing, owed
from sidecar.operations.schedules.schedule import Entry, Progress, bytes_of, headers_of, occurrence_id

IN_TIME_MAX: Final = 1_000  # occurrences of one schedule in one job, beside those that were missed
SIZE_MIN: Final = 16 << 10  # of the room for a transaction
OVERHEAD_BYTES: Final = 100  # of a record, about


class Room(NamedTuple):
    """Room in one transaction: so many records, so many bytes."""

    records: int
    size: int  # bytes

    def halved(self) -> "Room":
        """One record always fits."""
        return Room(max(self.records // 2, 1), max(self.size // 2, SIZE_MIN))

    def doubled(self, most: "Room") -> "Room":
        """As far as there is room for."""
        return Room(min(self.records * 2, most.records), min(self.size * 2, most.size))


class Job(NamedTuple):
    """Records that one schedule owes now, or a part of them."""

    entry: Entry
    before: Progress  # a standing one
    owed: Owed
    parcels: Sequence[OutgoingRecord]
    now_ms: int

    @property
    def name(self) -> str:
        """Of the schedule."""
        return self.entry.schedule.name

    @property
    def progress(self) -> Progress:
        """When it is written."""
        return after_writing(self.before, self.owed, self.now_ms)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(map(size_of, self.parcels))


def job_of(entry: Entry, progress: Progress, now_ms: int, limits: Limits, partitions: Mapping[str, int]) -> Job | None:
    """Job of what is owed behind a standing progress; None: nothing. `partitions`: counts of the sources."""
    found = owed(entry.schedule, progress, now_ms, limits, IN_TIME_MAX)
    if found.through_ms == progress.last_ms:
        return None
    schedule, count = entry.schedule, partitions[entry.source]
    key, value, headers = bytes_of(schedule.key), bytes_of(schedule.value), headers_of(schedule)
    parcels = []
    for at_ms in found.due:
        id = occurrence_id(schedule.name, at_ms).encode()
        controls = [(DELIVER_AT, b"%d" % at_ms), (TARGET, schedule.target.encode()), (ID, id)]
        partition = source_partition(key, id, count)
        parcels.append(OutgoingRecord(entry.source, key, value, [*headers, *controls], partition))
    return Job(entry, progress, found, parcels, now_ms)


def place_of(parcel: OutgoingRecord) -> str:
    """The partition that a record is for, as text: no topic has a slash in its name."""
    return f"{parcel.target}/{parcel.partition}"


def size_of(parcel: OutgoingRecord) -> int:
    """Bytes of a record, about."""
    size = len(parcel.key or b"") + len(parcel.value or b"") + OVERHEAD_BYTES
    return size + sum(len(name) + len(value or b"") for name, value in parcel.headers)


def split(job: Job, count: int) -> tuple[Job, Job]:
    """The first `count` records, at least one and not all, and the rest."""
    due, made_up = job.owed.due, job.owed.made_up
    first = Owed(due[:count], min(made_up, count), job.owed.dropped, due[count - 1], False, job.owed.missed)
    head = job._replace(owed=first, parcels=job.parcels[:count])
    last = job.owed._replace(due=due[count:], made_up=max(made_up - count, 0), dropped=False, missed=None)
    return head, job._replace(before=head.progress, owed=last, parcels=job.parcels[count:])


def before(job: Job, closed: Container[str]) -> tuple[Job | None, str]:
    """Part of a job before its first record for a closed place (None: nothing), and that place ("": there is none)."""
    for index, parcel in enumerate(job.parcels):
        if (place := place_of(parcel)) in closed:
            return (split(job, index)[0] if index else None), place
    return job, ""


def batches(jobs: Iterable[Job], room: Callable[[], Room]) -> Iterator[list[Job]]:
    """Batches for one transaction after the other, as there is room then: parts of jobs, of a job one at most."""
    batch: list[Job] = []
    left = room()
    for job in jobs:
        rest = job
        while (count := _fitting(rest, left, is_first=not batch)) < len(rest.parcels):
            if count:
                head, rest = split(rest, count)
                batch.append(head)
            yield batch
            batch, left = [], room()
        batch.append(rest)
        left = Room(left.records - max(len(rest.parcels), 1), left.size - rest.size)
    if batch:
        yield batch


def _fitting(job: Job, room: Room, is_first: bool) -> int:
    """How many of its records there is room for; a first one always."""
    size = 0
    for count, parcel in enumerate(job.parcels):
        size += size_of(parcel)
        if (count >= room.records or size > room.size) and not (is_first and count == 0):
            return count
    return len(job.parcels)
