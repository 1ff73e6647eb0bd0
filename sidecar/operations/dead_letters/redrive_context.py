"""Parts of the process that redrives work with."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.operations.dead_letters.dead_letter_log import LetterLog, TopicId
from sidecar.operations.dead_letters.redrive_plan import Redrive
from sidecar.operations.dead_letters.redrive_routing import Versions, Ways
from sidecar.operations.dead_letters.redriven_log import RedrivenLog
from sidecar.operations.jobs.job import JobLog


@dataclass(frozen=True, slots=True)
class RedriveContext:
    """Parts of the process that a leg works with."""

    client: Mapping[str, Any]
    log: JobLog[Redrive]
    redriven: RedrivenLog
    versions: Versions
    partitions: Callable[[], Mapping[str, int]]  # of all topics; raises LettersUnavailable
    open_log: Callable[[], LetterLog]
    topic_id: TopicId
    owner: str
    group: str
    ways: Callable[[Iterable[str]], Ways]  # among the topics that there are
    loops_max: int
    monotonic_s: Callable[[], float]
    wait: Callable[[float], bool]  # sleeps; True: the process is asked to stop
