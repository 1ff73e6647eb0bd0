"""docker-compose.yml as it stands, by whichever compose is there: from nothing to the first retried order."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest
import yaml

from sidecar.embedded.child import free_port
from tests.services.fixtures import missing
from tests.services.images import build, prometheus_image, valkey_image
from tests.services.kafka_servers import find_image
from tests.services.waiting import wait_until
from tests.source import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

FIRST_RETRY_S: Final = 300.0
ANSWER_S: Final = 60.0
COMMAND_S: Final = 400.0
DOCUMENT: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
CHART: Final = "./charts/tickover/files"
DASHBOARD: Final = json.loads((ROOT / CHART / "dashboard.json").read_text(encoding="utf-8"))
# Series that there are only once something has gone wrong, or is paused.
FAULTS: Final = ("tickover_dead_total", "tickover_quarantined_total", "tickover_pause_seconds")


def programs() -> list[list[str]]:
    """Compose programs that are here: the plugin first, then docker-compose 1."""
    plugin = ["docker", "compose"]
    is_there = subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0
    return [plugin] * is_there + [["docker-compose"]] * bool(shutil.which("docker-compose"))


class Compose:
    """One project of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.prometheus = f"http://127.0.0.1:{environment['PROMETHEUS_PORT']}/api/v1"
        # Or docker-compose gives up an engine that is busy for a minute.
        self._environment = {**os.environ, "COMPOSE_HTTP_TIMEOUT": f"{COMMAND_S:.0f}", **environment}
        found = programs()
        if not found:
            missing("docker compose", "neither the plugin nor docker-compose")
        self.project = ["--project-name", f"tickover-{uuid4().hex[:8]}"]
        self._programs = found

    def __call__(self, *arguments: str, program: Sequence[str] = ()) -> str:
        command = [*(program or self._programs[0]), *self.project, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False, timeout=COMMAND_S
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        return done.stdout


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    try:
        images = {
            "KAFKA_IMAGE": find_image(),
            "VALKEY_IMAGE": valkey_image(),
            "PROMETHEUS_IMAGE": prometheus_image(),
            "TICKOVER_IMAGE": build(),
        }
    except LookupError as error:
        missing("Docker", error)
        raise
    subprocess.run(["make", "data/tokens/tokens.yaml"], cwd=ROOT, check=True, capture_output=True)
    ports = {name: str(free_port()) for name in ("KAFKA_PORT", "API_PORT", "PROMETHEUS_PORT")}
    project = Compose({**images, **ports, "VALKEY_MEMORY": "64mb", "KAFKA_HEAP_OPTS": "-Xmx512m"})
    yield project
    project("--profile", "observability", "down", "--volumes", "--timeout", "5")


def test_from_nothing_to_the_first_retried_order(compose: Compose) -> None:
    since_s = time.monotonic()
    compose("up", "--detach", "--no-build")
    wait_until(
        lambda: "attempt 3: done" in compose("logs", "--no-color", "consumer"),
        FIRST_RETRY_S,
        lambda: compose("logs", "--no-color", "--tail", "40"),
    )
    print(f"first retried order after {time.monotonic() - since_s:.0f} s")
    lines = compose("logs", "--no-color", "consumer")
    done = [line for line in lines.splitlines() if "attempt 3: done" in line]
    order = done[0].partition("| ")[2].partition(",")[0].strip()
    for attempt in (1, 2, 3):
        assert lines.count(f"{order}, attempt {attempt}:") == 1
    # What runs is what the file says: nothing can be written but the two places.
    held = compose("exec", "-T", "tickover", "sh", "-c", "touch /opt/x 2>&1 || cat /proc/self/status | grep CapEff")
    assert "Read-only file system" in held
    assert "CapEff:\t0000000000000000" in held


def asked(compose: Compose, what: str, **parameters: str) -> Any:
    """Data of Prometheus' answer; empty while it can't answer."""
    try:
        answer = httpx.get(f"{compose.prometheus}/{what}", params=parameters, timeout=ANSWER_S, trust_env=False)
    except httpx.TransportError:
        return {}
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:  # it starts
        return {}
    document = answer.json()
    assert document["status"] == "success", (parameters, document)
    return document["data"]


def healths(compose: Compose) -> set[str]:
    return {rule["health"] for group in asked(compose, "rules").get("groups", ()) for rule in group["rules"]}


def test_prometheus_sees_what_the_dashboard_asks_for(compose: Compose) -> None:
    services = ("kafka", "valkey", "tickover", "producer", "consumer", "prometheus")
    compose("--profile", "observability", "up", "--detach", "--no-build", *services)
    wait_until(lambda: bool(asked(compose, "query", query="tickover_settled_total > 0").get("result")), FIRST_RETRY_S)
    wait_until(lambda: healths(compose) == {"ok"}, FIRST_RETRY_S, lambda: str(healths(compose)))
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")
            answer = partial(asked, compose, "query", query=query)
            if any(series in query for series in FAULTS):
                answer()
                continue
            shows: Any = lambda answer=answer: bool(answer().get("result"))  # noqa: E731
            wait_until(shows, FIRST_RETRY_S, lambda query=query: query)  # type: ignore[misc]
    wait_until(lambda: asked(compose, "label/instance/values") == ["tickover:8230"])


def test_the_whole_file_is_valid_with_every_profile_for_each_program(compose: Compose) -> None:
    for program in programs():
        compose("--profile", "observability", "config", "--quiet", program=program)


def binds(service: Mapping[str, Any]) -> dict[str, str]:
    """Where files of this checkout appear in a container."""
    return {
        inside: here
        for here, inside, *_ in (volume.split(":") for volume in service["volumes"])
        if here.startswith("./")
    }


def test_prometheus_and_grafana_show_what_the_chart_brings() -> None:
    services = DOCUMENT["services"]
    prometheus, grafana = binds(services["prometheus"]), binds(services["grafana"])
    for here in (*prometheus.values(), *grafana.values()):
        assert (ROOT / here).is_file(), here
    assert {services[name]["profiles"][0] for name in ("prometheus", "grafana")} == {"observability"}
    scraping = yaml.safe_load((ROOT / prometheus["/etc/prometheus/prometheus.yml"]).read_text(encoding="utf-8"))
    assert [prometheus[path] for path in scraping["rule_files"]] == [f"{CHART}/alerts.yaml"]
    (target,) = scraping["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == "tickover:8230"
    (provider,) = yaml.safe_load((ROOT / "examples/compose/grafana/dashboards.yaml").read_text())["providers"]
    home = f"{provider['options']['path']}/dashboard.json"
    assert grafana[home] == f"{CHART}/dashboard.json"
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == home
    (source,) = yaml.safe_load((ROOT / "examples/compose/grafana/datasource.yaml").read_text())["datasources"]
    (variable,) = (item for item in DASHBOARD["templating"]["list"] if item["type"] == "datasource")
    assert (source["type"], source["isDefault"]) == (variable["query"], True)
