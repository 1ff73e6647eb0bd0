"""Alerts and dashboard: PromQL that parses, over metrics and labels that the program has."""

import json
import re
from collections.abc import Iterator

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.serving.siblings import processes_up
from policies.table import EMPTY_TABLE
from sidecar.model.stats import Stats
from sidecar.service.metrics import Exposition, Recorder
from tests.helm import CHART, one, render
from tests.integration.project.test_prometheus import FAULTS
from tests.pages import alerts
from tests.source import ROOT, text_files

ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
RULES = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
SCRAPED = {"job", "instance", "namespace", "process"}  # labels that Prometheus adds, and several processes at a port
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}


def exposed() -> set[str]:
    """Names of all series."""
    text = Exposition(lambda: Stats(next_due_ms=1), lambda: EMPTY_TABLE, Recorder())().decode()
    families = [*text_string_to_metric_families(text), processes_up([1], [1])]
    return {family.name + suffix for family in families for suffix in SUFFIXES.get(family.type, ("",))}


def labels_of(series: str) -> set[str]:
    """Labels of a series, by the contract, with those that Prometheus adds."""
    contract = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    name = re.sub(r"_(bucket|sum|count)$", "", series)
    (labels,) = set(re.findall(rf"`{name}(?:{{([a-z,]+)}})?`", contract)) or {""}
    return set(filter(None, labels.split(","))) | SCRAPED | ({"le"} if series != name else set())


def parsed(query: str) -> promql_parser.Expr:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    return promql_parser.parse(query)


def series_in(query: str) -> Iterator[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def look(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(parsed(query), look)
    yield from found


def groupings(query: str) -> set[str]:
    """Labels by which it sums."""
    found: set[str] = set()

    def look(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            found.update(node.modifier.labels)

    promql_parser.walk(parsed(query), look)
    return found


@pytest.mark.parametrize("query", sorted({*QUERIES, *(rule["expr"] for rule in RULES.values())}))
def test_a_query_asks_for_series_and_labels_that_exist(query: str) -> None:
    series = list(series_in(query))
    assert series
    assert {item.name for item in series} <= exposed()
    known = set.intersection(*(labels_of(item.name or "") for item in series))
    assert groupings(query) | {matcher.name for item in series for matcher in item.matchers.matchers} <= known


def test_a_page_names_no_metric_that_does_not_exist() -> None:
    histograms = {series.removesuffix("_bucket") for series in exposed() if series.endswith("_bucket")}
    known = exposed() | histograms | {"tickover_pipeline"}  # a file that the page makes
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in pages
        for name in re.findall(r"\btickover_[a-z_]+[a-z]\b", page.read_text(encoding="utf-8"))
    }
    assert len(named) > len(RULES)
    assert sorted((page, name) for page, name in named if name not in known) == []


@pytest.mark.parametrize("name", sorted(RULES))
def test_an_alert_says_what_and_what_to_do(name: str) -> None:
    rule = RULES[name]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    series, *_ = series_in(rule["expr"])  # the first one's labels are kept
    kept = groupings(rule["expr"]) or labels_of(series.name or "")
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert used <= kept


def test_prometheus_is_shown_a_fault_for_each_alert() -> None:
    assert FAULTS.keys() == RULES.keys()


def test_what_has_to_be_watched_is() -> None:
    watched = {series.name for rule in RULES.values() for series in series_in(rule["expr"])}
    assert watched >= {
        "tickover_lateness_seconds_bucket",
        "tickover_ready",
        "tickover_oldest_overdue_seconds",
        "tickover_ledger_imbalance",
        "tickover_redis_memory_ratio",
        "tickover_redis_persistent",
        "tickover_redis_evicting",
        "tickover_clock_skew_seconds",
        "tickover_rebuilding_partitions",
        "tickover_config_file_bad",
        "tickover_secret_file_bad",
    }


def test_the_chart_brings_both_as_they_are() -> None:
    documents = render({"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}})
    assert one(documents, "PrometheusRule")["spec"] == ALERTS
    config = one(documents, "ConfigMap", "shop-tickover-dashboard")
    assert json.loads(config["data"]["tickover.json"]) == DASHBOARD
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_compose_and_guide_have_no_rules_but_the_charts() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in text_files() if "alert:" in path.read_text(encoding="utf-8")}
    assert {file for file in files if file.endswith((".yaml", ".yml"))} == {"charts/tickover/files/alerts.yaml"}
    volumes = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    mounted = {inside: here for here, inside, *_ in (volume.split(":") for volume in volumes)}
    loaded = yaml.safe_load((ROOT / mounted["/etc/prometheus/prometheus.yml"]).read_text())["rule_files"]
    assert [mounted[file] for file in loaded] == ["./charts/tickover/files/alerts.yaml"]
    assert alerts.RULES == CHART / "files" / "alerts.yaml"  # of which the guide's table is made
    assert alerts.MORE.keys() <= RULES.keys()


def threshold_of(name: str) -> float:
    """The number at the end of an alert's first comparison."""
    return float(re.findall(r" > ([\d.]+)", RULES[name]["expr"])[0])


def test_panels_are_red_where_alerts_begin() -> None:
    red = {
        panel["title"]: step["value"]
        for panel in DASHBOARD["panels"]
        for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())
        if step["color"] == "red"
    }
    assert red["Oldest overdue"] == threshold_of("TickoverOverdue")
    assert red["Lateness, 99th percentile"] == threshold_of("TickoverLate")


def test_panels_are_told_apart_and_lie_side_by_side() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
