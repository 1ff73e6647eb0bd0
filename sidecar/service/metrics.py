"""Prometheus text of what the engine publishes, of the policies, and of the overflow's commands.

Counts come from the engine's frozen `Stats`, so a scrape costs the engine nothing. What the overflow's worker
and housekeeping measure themselves they hand to a `Recorder`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from platform import python_version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from policies.retention import Short
from policies.table import PolicyTable
from sidecar.engine.counters import COUNTED
from sidecar.model.condition import Pausable
from sidecar.model.record import Outcome
from sidecar.model.stats import LATENESS_BOUNDS_MS, Lateness, Left, Stats, TopicCounts
from sidecar.model.version import VERSION

PREFIX: Final = "tickover_"
BREAKER_STATES: Final = ("closed", "half_open", "open")
CONFIG_FILES: Final = ("policies", "settings")  # of those that are looked at; the others hold secrets
OCCURRENCE_KINDS: Final = ("in_time", "made_up")
Ages = Callable[[], Mapping[Pausable, float]]
COMMAND_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Recorder:
    """Measurements that no snapshot has. Any thread may call it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            PREFIX + "overflow_seconds",
            "Duration of the overflow's commands",
            ["command"],
            registry=self.registry,
            buckets=COMMAND_BOUNDS_S,
        )
        self._short_retention = Gauge(
            PREFIX + "retention_short",
            "1 for each setting by which a topic may lose records while they are held",
            ["topic", "setting"],
            registry=self.registry,
        )
        self._left = Gauge(
            PREFIX + "left_records",
            "Records that the group still has of a topic that no policy makes a source any more",
            ["topic"],
            registry=self.registry,
        )
        self._open_letters = Gauge(
            PREFIX + "dead_letters_open",
            "Letters that no redrive has sent or discarded, at most",
            ["topic"],
            registry=self.registry,
        )
        self._occurrences = Counter(
            PREFIX + "schedule_occurrences",
            "Occurrences of schedules that this process has written, in time or to make up for missed ones",
            ["schedule", "kind"],
            registry=self.registry,
        )
        self._passed_over = Counter(
            PREFIX + "schedule_gaps",
            "How often missed occurrences of a schedule were passed over",
            ["schedule"],
            registry=self.registry,
        )
        self._schedules: set[str] = set()  # with counts
        self._spans = Counter(
            PREFIX + "spans",
            "Spans of emissions, by what became of them: exported, failed (the collector did not take them), dropped",
            ["outcome"],
            registry=self.registry,
        )
        self._memory = Gauge(
            PREFIX + "redis_memory_ratio",
            "Redis memory used, as a share of maxmemory; 0 without a limit",
            registry=self.registry,
        )
        self._persistent = Gauge(
            PREFIX + "redis_persistent",
            "1 while Redis writes an append-only file or snapshots, as far as it tells",
            registry=self.registry,
        )
        self._persistent.set(1)  # not known yet: no alarm
        self._evicting = Gauge(
            PREFIX + "redis_evicting",
            "1 while Redis throws held records away when it is full, and redis.allow_eviction doesn't allow it",
            registry=self.registry,
        )
        self._evicted = Counter(
            PREFIX + "redis_evicted_keys",
            "Keys that Redis has evicted since this process was started, of tickover or of anybody else",
            registry=self.registry,
        )
        self._make_trust()
        self._make_writers()

    def _make_writers(self) -> None:
        self._writer = Gauge(
            PREFIX + "schedule_writer",
            "1 for the one process of the group that writes what schedules owe; 0 everywhere while there are none",
            registry=self.registry,
        )
        self._unread_schedules = Gauge(
            PREFIX + "schedules_unreadable",
            "Schedules that this process can't read: of a newer version, or in an unknown time zone",
            registry=self.registry,
        )

    def _make_trust(self) -> None:
        self._left_out = Counter(
            PREFIX + "lookup_left_out",
            "What replicas said to each other through Redis and was not heeded, by reason",
            ["reason"],
            registry=self.registry,
        )
        self._secret_files = Gauge(
            PREFIX + "secret_file_bad",
            "1 while a file of tokens, a certificate or a password can't be used: what it said before goes on",
            ["file"],
            registry=self.registry,
        )
        self._config_files = Gauge(
            PREFIX + "config_file_bad",
            "1 while a changed file of policies or settings can't be used: what it said before goes on",
            ["file"],
            registry=self.registry,
        )

    def observe(self, command: str, seconds: float) -> None:
        """Note how long one call of the overflow took, in seconds."""
        self._seconds.labels(command).observe(seconds)

    def schedule(self, name: str, in_time: int, made_up: int, passed_over: bool) -> None:
        """Count occurrences of a schedule that were written; `passed_over`: some that were missed never will be."""
        for kind, count in zip(OCCURRENCE_KINDS, (in_time, made_up), strict=True):
            self._occurrences.labels(name, kind).inc(count)
        self._passed_over.labels(name).inc(passed_over)
        self._schedules.add(name)

    def keep_schedules(self, alive: Collection[str]) -> None:
        """Remove the counts of all schedules but these: the others were deleted. Housekeeping calls it."""
        for name in [name for name in tuple(self._schedules) if name not in alive]:
            self._schedules.discard(name)
            for kind in OCCURRENCE_KINDS:
                self._occurrences.remove(name, kind)
            self._passed_over.remove(name)

    def watch_writer(self, is_writer: Callable[[], bool]) -> None:
        """Ask this whenever somebody scrapes."""
        self._writer.set_function(is_writer)

    def watch_unread_schedules(self, count: Callable[[], int]) -> None:
        """Ask this whenever somebody scrapes."""
        self._unread_schedules.set_function(count)

    def set_short_retentions(self, short: Iterable[Short]) -> None:
        """Sources and ledger that keep their records for less than they may be held."""
        self._short_retention.clear()
        for one in short:
            self._short_retention.labels(one.topic, one.setting).set(1)

    def set_left(self, left: Mapping[str, Left]) -> None:
        """Topics that are consumed only until the group has nothing of them."""
        self._left.clear()
        for topic, one in left.items():
            self._left.labels(topic).set(one.records)

    def set_open_letters(self, letters: Mapping[str, int]) -> None:
        """By dead-letter topic: letters that no redrive has sent."""
        self._open_letters.clear()
        for topic, count in letters.items():
            self._open_letters.labels(topic).set(count)

    def spans(self, outcome: str, count: int) -> None:
        """Count spans that were exported, refused or dropped (`outcome`)."""
        self._spans.labels(outcome).inc(count)

    def watched_file(self, name: str, is_good: bool) -> None:
        """A file was read, and can be used or not: one with secrets (`tokens`, `certificate`, `kafka`, `redis`,
        `sentinel`), or another one (`policies`, `settings`).
        """
        gauge = self._config_files if name in CONFIG_FILES else self._secret_files
        gauge.labels(name).set(not is_good)

    def leave_out(self, reason: str) -> None:
        """One question or answer of another replica was not heeded: `bad_question`, `bad_answer`, `stale_question`
        (whose asker waits no longer), `busy` (too many wait already).
        """
        self._left_out.labels(reason).inc()

    def set_redis(self, memory_ratio: float, is_persistent: bool, is_evicting: bool, evicted_keys: int) -> None:
        """Used memory of the Redis that is nearest to its limit (0..1), whether all survive a restart, whether one may
        evict what is held against the settings, and how many keys were evicted since the last time.
        """
        self._memory.set(memory_ratio)
        self._persistent.set(is_persistent)
        self._evicting.set(is_evicting)
        self._evicted.inc(evicted_keys)


class Exposition:
    """Call it for the text of a scrape. `ages_s`: seconds that each pause has been in force."""

    def __init__(
        self, stats: Callable[[], Stats], table: Callable[[], PolicyTable], recorder: Recorder, ages_s: Ages = dict
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Snapshot(stats, table, ages_s))
        self._recorder = recorder

    def __call__(self) -> bytes:
        return generate_latest(self._registry) + generate_latest(self._recorder.registry)


class _Snapshot(Collector):
    """Turns one `Stats`, one `PolicyTable` and the pauses into metrics."""

    def __init__(self, stats: Callable[[], Stats], table: Callable[[], PolicyTable], ages_s: Ages) -> None:
        self._stats = stats
        self._table = table
        self._ages_s = ages_s

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would collect, before there is anything to collect

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        yield from _topic_counts(stats)
        yield from _reasons(stats)
        yield _held(stats)
        yield from _targets(stats)
        yield _quotas(stats)
        yield _lateness(stats.lateness)
        yield from _state(stats)
        yield _policies(self._table())
        yield _pauses(self._ages_s())
        yield InfoMetricFamily(PREFIX + "build", "This program", {"version": VERSION, "python": python_version()})


def _topic_counts(stats: Stats) -> Iterable[Metric]:
    accepted = CounterMetricFamily(PREFIX + "accepted", "Records taken from a source", labels=["topic"])
    settled = CounterMetricFamily(PREFIX + "settled", "Records that have left for good", labels=["topic", "outcome"])
    emitted = CounterMetricFamily(PREFIX + "emitted", "Records emitted to their target", labels=["topic"])
    cancelled = CounterMetricFamily(PREFIX + "cancelled", "Records cancelled", labels=["topic"])
    text = "Control records, by whether they found a record to act on: found, not_found"
    control = CounterMetricFamily(PREFIX + "control", text, labels=["topic", "outcome"])
    for topic, counts in sorted(stats.topics.items()):
        control.add_metric([topic, "found"], counts.applied - counts.not_found)
        control.add_metric([topic, "not_found"], counts.not_found)
        accepted.add_metric([topic], counts.accepted)
        emitted.add_metric([topic], counts.emitted)
        cancelled.add_metric([topic], counts.cancelled)
        for outcome in COUNTED:
            settled.add_metric([topic, outcome.name.lower()], _settled_as(outcome, counts))
    return accepted, settled, emitted, cancelled, control


def _settled_as(outcome: Outcome, counts: TopicCounts) -> int:
    match outcome:
        case Outcome.EMITTED:
            return counts.emitted
        case Outcome.DEAD:
            return counts.dead
        case Outcome.QUARANTINED:
            return counts.quarantined
        case Outcome.CANCELLED:
            return counts.cancelled
        case Outcome.REPLACED:
            return counts.replaced
        case Outcome.APPLIED | Outcome.MOVED:
            return counts.applied


def _reasons(stats: Stats) -> Iterable[Metric]:
    for name, documentation, reasons in (
        ("dead", "Records given up, by reason", stats.dead_reasons),
        ("quarantined", "Records set aside, by reason", stats.quarantine_reasons),
    ):
        family = CounterMetricFamily(PREFIX + name, documentation, labels=["topic", "reason"])
        for (topic, reason), count in sorted(reasons.items()):
            family.add_metric([topic, reason], count)
        yield family


def _held(stats: Stats) -> Metric:
    held = GaugeMetricFamily(PREFIX + "held", "Records accepted and not yet settled", labels=["tier"])
    held.add_metric(["wheel"], sum(counts.wheel for counts in stats.topics.values()))
    held.add_metric(["overflow"], sum(counts.overflow for counts in stats.topics.values()))
    return held


def _targets(stats: Stats) -> Iterable[Metric]:
    waiting = GaugeMetricFamily(
        PREFIX + "target_waiting", "Records that are due and wait, since their target is limited", labels=["target"]
    )
    for target, flow in sorted(stats.targets.items()):
        waiting.add_metric([target], flow.waiting)
    breakers = GaugeMetricFamily(
        PREFIX + "breaker_state", "Circuit breaker of a target: 0 closed, 1 half-open, 2 open", labels=["target"]
    )
    for target, flow in sorted(stats.targets.items()):
        if flow.breaker:
            breakers.add_metric([target], BREAKER_STATES.index(flow.breaker))
    suspended = GaugeMetricFamily(
        PREFIX + "target_suspended", "1 while a target does not acknowledge: its records wait", labels=["target"]
    )
    for target in stats.suspended:
        suspended.add_metric([target], 1)
    return waiting, breakers, suspended


def _quotas(stats: Stats) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "quota_used_ratio",
        "Share of a policy's quota that is held, in the fullest partition",
        labels=["policy"],
    )
    for policy, use in sorted(stats.quotas.items()):
        family.add_metric([policy], use.share)
    return family


def _lateness(lateness: Lateness) -> Metric:
    buckets, reached = [], 0
    bounds = (*(str(bound / 1_000) for bound in LATENESS_BOUNDS_MS), "+Inf")
    for bound, count in zip(bounds, lateness.counts, strict=True):
        reached += count
        buckets.append((bound, reached))
    family = HistogramMetricFamily(PREFIX + "lateness_seconds", "Hand-over to the producer minus due")
    family.add_metric([], buckets, lateness.sum_ms / 1_000)
    return family


def _state(stats: Stats) -> Iterable[Metric]:
    yield _gauge("ready", "1 while /readyz says so", float(not stats.problems))
    yield CounterMetricFamily(PREFIX + "early", "Records emitted before they were due", stats.early)
    yield CounterMetricFamily(PREFIX + "rebalances", "Changes of the partitions assigned", stats.rebalances)
    yield _gauge(
        "oldest_overdue_seconds",
        "Wait of the oldest due record; while Redis does not answer, of what may be due there",
        stats.oldest_overdue_ms / 1_000,
    )
    next_due = GaugeMetricFamily(PREFIX + "next_due_timestamp_seconds", "When the next held record is due")
    if stats.next_due_ms >= 0:  # without a next one, any number would be a time: the name stands alone
        next_due.add_metric([], stats.next_due_ms / 1_000)
    yield next_due
    yield _gauge("ledger_imbalance", "Records that accounts can't explain", stats.ledger_imbalance)
    yield _gauge("recovery_seconds", "Duration of the last recovery", stats.recovery_s)
    yield _gauge("rebuilding_partitions", "Partitions whose overflow is being rebuilt", len(stats.rebuilding))
    yield CounterMetricFamily(PREFIX + "rebuilds", "Overflows of a partition that were rebuilt", stats.rebuilds)
    rebuilt = CounterMetricFamily(PREFIX + "rebuilt_records", "Records written back to Redis", labels=["topic"])
    for topic, count in sorted(stats.rebuilt.items()):
        rebuilt.add_metric([topic], count)
    lost = CounterMetricFamily(
        PREFIX + "lost",
        "Held records that could not be put back, by whose retention took them",
        labels=["topic", "retention"],
    )
    for (topic, retention), count in sorted(stats.lost.items()):
        lost.add_metric([topic, retention], count)
    parked = GaugeMetricFamily(PREFIX + "parked", "Held records behind another of the same key", labels=["topic"])
    for topic, counts in sorted(stats.topics.items()):
        parked.add_metric([topic], counts.parked)
    yield from (rebuilt, lost, parked)
    yield _gauge("clock_skew_seconds", "How far this clock is ahead of the brokers'", stats.clock_skew_ms / 1_000)
    yield _gauge("paused_partitions", "Partitions whose intake waits", stats.partitions_paused)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, documentation, value)


def _policies(table: PolicyTable) -> Metric:
    family = GaugeMetricFamily(PREFIX + "policy_info", "Policies in force; always 1", labels=["policy", "version"])
    for name, versioned in sorted(table.policies.items()):
        family.add_metric([name, str(versioned.version)], 1)
    return family


def _pauses(ages_s: Mapping[Pausable, float]) -> Metric:
    text = "How long a policy, a source, a target or a schedule has been paused; nothing once it is resumed"
    family = GaugeMetricFamily(PREFIX + "pause_seconds", text, labels=["kind", "name"])
    for (kind, name), age_s in ages_s.items():
        family.add_metric([kind.value, name], age_s)
    return family
