"""The page of metrics, from what a process exposes."""

from types import MappingProxyType
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from api.serving.siblings import processes_up
from policies.model import Policy, Versioned
from policies.retention import Short
from policies.table import PolicyTable
from sidecar.model.condition import Pausable, PauseKind
from sidecar.model.stats import Left, QuotaUse, Stats, TargetFlow, TopicCounts
from sidecar.service.metrics import Exposition, Recorder
from tests.pages.text import code, head, table

WORDS: Final = """\
At `GET /metrics`, in Prometheus text. `topic` is the source, `tier` is `wheel` or `overflow`. Counters begin at 0 with
the process. What they mean for whoever runs it: [the contract](../contract.md#metrics).
What to watch: [lateness and alerts](../how-to/read-lateness-and-alerts.md).

"""


def families() -> list[Metric]:
    """Every family, with a sample of each label where labels are known only by samples."""
    recorder = Recorder()
    recorder.observe("apply", 0.001)
    recorder.schedule("daily-report", 1, 0, passed_over=False)
    recorder.set_open_letters({"reminders-dlq": 1})
    recorder.set_short_retentions([Short("reminders", "retention.ms", 1, 2)])
    recorder.set_left({"reminders": Left(1, 0)})
    recorder.spans("exported", 1)
    recorder.watched_file("tokens", is_good=True)
    recorder.watched_file("policies", is_good=True)
    recorder.leave_out("bad_answer")
    by_topic = MappingProxyType({"reminders": TopicCounts(accepted=1)})
    by_reason = MappingProxyType({("reminders", "expired"): 1})
    stats = Stats(
        topics=by_topic,
        dead_reasons=by_reason,
        quarantine_reasons=by_reason,
        next_due_ms=1,
        targets=MappingProxyType({"push": TargetFlow(1, 1.0, "closed")}),
        suspended=("push",),
        quotas=MappingProxyType({"reminders": QuotaUse(1, 1, 0.5)}),
        rebuilt=MappingProxyType({"reminders": 1}),
        lost=MappingProxyType({("reminders", "source"): 1}),
    )
    policy = Policy.model_validate(
        {"name": "reminders", "match": {"topics": ["reminders"]}, "delay": {}, "target": {"topic": "push"}}
    )
    policies = PolicyTable(1, {"reminders": Versioned(policy, 1, "somebody", 0, "api")})
    paused = {Pausable(PauseKind.TARGET, "push"): 60.0}
    text = Exposition(lambda: stats, lambda: policies, recorder, lambda: paused)().decode()
    found = [*text_string_to_metric_families(text), processes_up([1], [1])]
    return sorted((one for one in found if not one.name.endswith("_created")), key=lambda one: one.name)


def exposed_name(family: Metric) -> str:
    """As it is asked for in a query."""
    return family.name + ("_total" if family.type == "counter" else "")


def labels_of(family: Metric) -> dict[str, None]:
    """Labels of a family in order, without the bounds of a histogram's buckets."""
    return {name: None for sample in family.samples for name in sample.labels if name != "le"}


def page() -> str:
    """The whole text."""
    rows = []
    for family in families():
        rows.append(
            (
                code(exposed_name(family)),
                family.type,
                ", ".join(map(code, labels_of(family))),
                family.documentation,
            )
        )
    return head("Metrics", "sidecar/service/metrics.py", WORDS) + table(("metric", "type", "labels", "what"), rows)
