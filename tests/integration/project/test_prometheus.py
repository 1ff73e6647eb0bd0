"""The alerts in a real Prometheus: its promtool takes them as they are, and each fires when it should and only then."""

import json
from pathlib import Path
from typing import Any, Final

import docker
import pytest
import yaml

from tests.helm import CHART
from tests.integration.project.test_compose import DOCUMENT, binds
from tests.services.images import prometheus_image
from tests.services.kafka_servers import DOCKER
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(300)]

IMAGE: Final = prometheus_image
MINUTES: Final = 60
WHO: Final = 'job="tickover",instance="one"'
ALERTS: Final = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
RULES: Final = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}


def lateness(*counts_a_minute: int) -> dict[str, str]:
    """Messages that were at most 0.1 s late, at most 2 s, and any."""
    return {
        f'tickover_lateness_seconds_bucket{{{WHO},le="{le}"}}': f"0+{count}x{MINUTES}"
        for le, count in zip(("0.1", "2", "+Inf"), counts_a_minute, strict=True)
    }


def always(name: str, value: float, labels: str = "") -> dict[str, str]:
    """A series that doesn't change."""
    return {f"tickover_{name}{{{WHO}{labels}}}": f"{value}x{MINUTES}"}


def growing(name: str, labels: str = "") -> dict[str, str]:
    """A counter that counts one a minute."""
    return {f"tickover_{name}{{{WHO}{labels}}}": f"0+1x{MINUTES}"}


ORDERS: Final = ',topic="orders"'
KEPT: Final = ',topic="orders",retention="source"'
FOUND: Final = ',topic="orders",outcome="found"'
NOT_FOUND: Final = ',topic="orders",outcome="not_found"'
BAD: Final = ',topic="orders",reason="bad_header"'
SHORT: Final = ',topic="orders",setting="retention.ms"'
POLICIES: Final = ',file="policies"'
TOKENS: Final = ',file="tokens"'
PAUSED: Final = ',kind="target",name="mail"'
SOUND: Final[dict[str, str]] = {
    **always("build_info", 1), **always("ready", 1), **always("early_total", 0), **always("ledger_imbalance", 0),
    **always("lost_total", 3, KEPT), **always("oldest_overdue_seconds", 0.2), **lateness(600, 600, 600),
    **always("paused_partitions", 0), **always("rebuilding_partitions", 0), **always("redis_memory_ratio", 0.7),
    **always("redis_persistent", 1), **always("redis_evicting", 0), **always("clock_skew_seconds", 0.1),
    **always("retention_short", 0, SHORT), **always("left_records", 0, ORDERS), **always("quarantined_total", 3, BAD),
    **always("control_total", 3, NOT_FOUND), **always("control_total", 3, FOUND), **always("schedules_unreadable", 0),
    **always("config_file_bad", 0, POLICIES), **always("secret_file_bad", 0, TOKENS),
    **always("pause_seconds", 86_000, PAUSED),
}  # fmt: skip
# Alert: what is different from a sound system then.
FAULTS: Final[dict[str, dict[str, str]]] = {
    "TickoverAbsent": dict.fromkeys(SOUND, "_x60"),
    "TickoverNotReady": always("ready", 0),
    "TickoverEarly": growing("early_total"),
    "TickoverImbalance": always("ledger_imbalance", -1),
    "TickoverLost": growing("lost_total", KEPT),
    "TickoverOverdue": always("oldest_overdue_seconds", 31),
    "TickoverLate": lateness(500, 500, 600),
    "TickoverPaused": always("paused_partitions", 1),
    "TickoverPauseForgotten": always("pause_seconds", 86_401, PAUSED),
    "TickoverRebuilding": always("rebuilding_partitions", 1),
    "TickoverRedisMemory": always("redis_memory_ratio", 0.76),
    "TickoverRedisEvicts": always("redis_evicting", 1),
    "TickoverRedisNotPersistent": always("redis_persistent", 0),
    "TickoverClock": always("clock_skew_seconds", 0.6),
    "TickoverRetentionShort": always("retention_short", 1, SHORT),
    "TickoverLeftRecords": always("left_records", 3, ORDERS),
    "TickoverScheduleUnreadable": always("schedules_unreadable", 1),
    "TickoverConfigFileBad": always("config_file_bad", 1, POLICIES),
    "TickoverSecretFileBad": always("secret_file_bad", 1, TOKENS),
    "TickoverControlsNotFound": growing("control_total", NOT_FOUND),
    "TickoverQuarantine": growing("quarantined_total", BAD),
}
# What is no fault: messages wait for a target that a policy limits.
LIMITED: Final = {**always("oldest_overdue_seconds", 900), **always("target_waiting", 5, ',target="mail"')}


def promtool(image: str, files: dict[str, Path], *arguments: str) -> str:
    """Output of promtool; raises ContainerError where it finds a fault."""
    client = docker.from_env(**DOCKER)
    try:
        volumes = [f"{here}:{inside}:ro" for inside, here in files.items()]
        said: bytes = client.containers.run(image, list(arguments), entrypoint="promtool", volumes=volumes, remove=True)
        return said.decode()
    finally:
        client.close()


def test_it_takes_configuration_and_rules_as_they_stand(image: str) -> None:
    files = {inside: ROOT / here for inside, here in binds(DOCUMENT["services"]["prometheus"]).items()}
    said = promtool(image, files, "check", "config", "--lint=all", "--lint-fatal", "/etc/prometheus/prometheus.yml")
    assert f"{len(RULES)} rules found" in said


def firing(faults: dict[str, str], wanted: dict[str, str], name: str) -> dict[str, Any]:
    """A test in promtool's words: what fires from which minute on."""
    series = [{"series": series, "values": values} for series, values in {**SOUND, **faults}.items()]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    fires = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in wanted]
    cases = [{"expr": firing, "eval_time": f"{MINUTES}m", "exp_samples": fires}]
    for alert, delay in wanted.items():
        if delay != "0m":
            # Not in the first minute less than its `for`.
            before = f"{int(delay.removesuffix('m')) - 1}m"
            cases.append({"expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}', "eval_time": before})
    return {"name": name, "interval": "1m", "input_series": series, "promql_expr_test": cases}


def test_each_alert_fires_when_it_should_and_no_other_does(image: str, tmp_path: Path) -> None:
    cases = [firing({}, {}, "sound"), firing(LIMITED, {}, "limited")]
    cases += [firing(faults, {alert: RULES[alert].get("for", "0m")}, alert) for alert, faults in FAULTS.items()]
    tests = tmp_path / "tests.yaml"
    tests.write_text(json.dumps({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": cases}))
    tests.chmod(0o644)
    files = {"/rules/alerts.yaml": CHART / "files" / "alerts.yaml", "/rules/tests.yaml": tests}
    assert "SUCCESS" in promtool(image, files, "test", "rules", "/rules/tests.yaml")
