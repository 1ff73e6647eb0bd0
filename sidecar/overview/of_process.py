"""The overview's parts of one process: its last hour, its report for the others, and its look at the whole group."""

import time
from collections.abc import Callable

from policies.topic.store import PolicyStore
from sidecar.conditions.recorder import ConditionRecorder
from sidecar.conditions.store import RedisSpanLog
from sidecar.kafka.backlog import Backlog
from sidecar.lookup.group import GroupLookUp
from sidecar.model.stats import Stats
from sidecar.operations.pauses.store import PauseStore
from sidecar.operations.schedules.store import ScheduleStore
from sidecar.overview.group_overview import Asked, GroupOverview
from sidecar.overview.minutes import LastHour
from sidecar.overview.reporting import Reporter, Run, warnings_of
from sidecar.settings.settings import Settings


def now_ms() -> int:
    """Epoch ms of this host."""
    return time.time_ns() // 1_000_000


class ProcessOverview:
    """Of one start of a process. `step` is housekeeping's."""

    def __init__(
        self,
        settings: Settings,
        stats: Callable[[], Stats],
        store: PolicyStore,
        spans: RedisSpanLog,
        conditions: ConditionRecorder,
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._store = store
        self._spans = spans
        self._conditions = conditions
        self._hour = LastHour(self._retries)
        self._run = Run(spans.run, now_ms())

    def step(self) -> None:
        """Note what the engine has done since the last step."""
        self._hour.step(self._stats())

    def reporter(self, schedules: ScheduleStore) -> Reporter:
        """The reports of this process for the others."""
        store = self._store

        def warnings(stats: Stats) -> list[str]:
            return warnings_of(stats, "" if store.healthy else store.reason, schedules.unread())

        return Reporter(self._run, self._stats, self._hour, self._conditions.going_on, warnings, time.monotonic)

    def group(self, replicas: GroupLookUp, backlog: Backlog, pauses: PauseStore) -> GroupOverview:
        """The whole group as this process sees it."""
        asked = Asked(replicas, self._spans.signs, backlog.ends, pauses.alive)
        return GroupOverview(self._settings.group, self._settings.guarantee, asked, now_ms, time.monotonic)

    def _retries(self, topic: str) -> bool:
        return any(rule.retry is not None for rule in self._store.table.rules(topic))
