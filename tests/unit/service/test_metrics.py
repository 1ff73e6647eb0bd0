from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from policies.model import Policy, Versioned
from policies.table import EMPTY_TABLE, PolicyTable
from sidecar.model.condition import Pausable, PauseKind
from sidecar.model.stats import LATENESS_BOUNDS_MS, Lateness, Stats, TopicCounts
from sidecar.service.metrics import Exposition, Recorder

# Contract, section 8.
NAMES = {
    "accepted_total",
    "settled_total",
    "emitted_total",
    "dead_total",
    "quarantined_total",
    "cancelled_total",
    "held",
    "lateness_seconds",
    "early_total",
    "ready",
    "oldest_overdue_seconds",
    "next_due_timestamp_seconds",
    "ledger_imbalance",
    "overflow_seconds",
    "redis_memory_ratio",
    "redis_persistent",
    "redis_evicting",
    "redis_evicted_keys_total",
    "clock_skew_seconds",
    "rebalances_total",
    "recovery_seconds",
    "paused_partitions",
    "policy_info",
    "build_info",
}


def samples(stats: Stats, table: PolicyTable = EMPTY_TABLE, recorder: Recorder | None = None) -> dict[Any, float]:
    text = Exposition(lambda: stats, lambda: table, recorder or Recorder())().decode()
    return {
        (sample.name.removeprefix("tickover_"), *ordered(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ordered(labels: dict[str, str]) -> list[str]:
    """The values, the topic's first."""
    return [labels[name] for name in sorted(labels, key=lambda name: (name != "topic", name))]


COUNTS = TopicCounts(
    accepted=100, emitted=20, dead=3, quarantined=4, cancelled=5, replaced=6, applied=7, wheel=30, overflow=25
)
STATS = Stats(
    topics={"a": COUNTS, 'odd"\n\\': COUNTS},
    dead_reasons={("a", "expired"): 2, ("a", "timeout"): 1},
    quarantine_reasons={("a", "loop"): 4},
    lateness=Lateness(counts=(1, 2) + (0,) * (len(LATENESS_BOUNDS_MS) - 2) + (4,), sum_ms=2_500.0),
    early=1,
    suspended=("mail",),
    oldest_overdue_ms=1_500,
    next_due_ms=2_000,
    rebalances=3,
    recovery_s=0.5,
    ledger_imbalance=9,
    partitions_paused=2,
    clock_skew_ms=40,
)


def test_every_name_of_the_contract() -> None:
    recorder = Recorder()
    recorder.observe("apply", 0.001)
    versioned = Versioned(
        Policy.model_validate({"name": "p", "match": {"topics": ["a"]}, "delay": {}, "target": {"allow": ["*"]}}),
        4,
        "x",
        0,
        "api",
    )
    table = PolicyTable(1, MappingProxyType({"p": versioned}))
    found = samples(STATS, table, recorder)
    names = {name for name, *_ in found}
    for wanted in NAMES:
        assert wanted in names or f"{wanted}_bucket" in names, wanted
    assert found["policy_info", "p", "4"] == 1


def test_values() -> None:
    found = samples(STATS)
    assert found["accepted_total", "a"] == 100
    assert found["emitted_total", 'odd"\n\\'] == 20
    assert {
        outcome: found["settled_total", "a", outcome]
        for outcome in ("emitted", "dead", "quarantined", "cancelled", "replaced", "applied")
    } == {"emitted": 20, "dead": 3, "quarantined": 4, "cancelled": 5, "replaced": 6, "applied": 7}
    assert found["dead_total", "a", "expired"] == 2
    assert found["quarantined_total", "a", "loop"] == 4
    assert (found["held", "wheel"], found["held", "overflow"]) == (60, 50)
    assert found["early_total",] == 1
    assert found["oldest_overdue_seconds",] == 1.5
    assert found["target_suspended", "mail"] == 1
    assert found["next_due_timestamp_seconds",] == 2
    assert found["ledger_imbalance",] == 9
    assert found["rebalances_total",] == 3
    assert found["recovery_seconds",] == 0.5
    assert found["paused_partitions",] == 2
    assert found["clock_skew_seconds",] == 0.04


def test_lateness_is_a_cumulative_histogram_in_seconds() -> None:
    found = samples(STATS)
    assert found["lateness_seconds_bucket", "0.001"] == 1
    assert found["lateness_seconds_bucket", "0.002"] == 3
    assert found["lateness_seconds_bucket", "300.0"] == 3
    assert found["lateness_seconds_bucket", "+Inf"] == 7
    assert found["lateness_seconds_count",] == 7
    assert found["lateness_seconds_sum",] == 2.5


def test_an_idle_process() -> None:
    found = samples(Stats())
    assert (found["early_total",], found["ready",]) == (0, 0)
    assert samples(Stats(joined=True))["ready",] == 1
    assert samples(Stats(joined=True, kafka_problem="away"))["ready",] == 0
    assert ("next_due_timestamp_seconds",) not in found
    assert b"# TYPE tickover_next_due_timestamp_seconds gauge" in Exposition(Stats, lambda: EMPTY_TABLE, Recorder())()
    assert found["redis_memory_ratio",] == 0
    assert found["redis_persistent",] == 1
    assert (found["redis_evicting",], found["redis_evicted_keys_total",]) == (0, 0)


def test_each_pause_says_how_long_it_lasts_and_none_is_left_of_one_that_is_over() -> None:
    ages_s = {Pausable(PauseKind.TARGET, "mail"): 86_401.0, Pausable(PauseKind.SCHEDULE, 'odd"\n'): 0.5}
    expose = Exposition(Stats, lambda: EMPTY_TABLE, Recorder(), lambda: ages_s)

    def shown() -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(expose().decode())
        [one] = [family for family in families if family.name == "tickover_pause_seconds"]
        return {tuple(sample.labels.values()): sample.value for sample in one.samples}

    assert shown() == {("target", "mail"): 86_401, ("schedule", 'odd"\n'): 0.5}
    ages_s.clear()
    assert shown() == {}


def test_recorder_from_many_threads() -> None:
    recorder = Recorder()
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(lambda: [recorder.observe("apply", 0.002) for _ in range(1_000)])
    for evicted_keys in (3, 0, 4):
        recorder.set_redis(0.4, is_persistent=False, is_evicting=True, evicted_keys=evicted_keys)
    found = samples(Stats(), recorder=recorder)
    assert found["overflow_seconds_count", "apply"] == 4_000
    assert found["overflow_seconds_bucket", "apply", "0.001"] == 0
    assert found["overflow_seconds_bucket", "apply", "0.0025"] == 4_000
    assert found["redis_memory_ratio",] == 0.4
    assert found["redis_persistent",] == 0
    assert (found["redis_evicting",], found["redis_evicted_keys_total",]) == (1, 7)
