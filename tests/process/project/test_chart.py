"""The chart as helm renders it, against the schemas of three versions of Kubernetes."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from api.access.auth import Caller, Role, load_tokens
from policies.file import parse_policies
from tests.helm import (
    CHART,
    EXAMPLE,
    NOT_OF_THE_CHECKOUT,
    VERSIONS,
    Document,
    NotRendered,
    containers,
    example,
    helm,
    kinds,
    one,
    render,
)
from tests.source import ROOT

pytestmark = pytest.mark.slow

TOKENS = {"tokensSecret": "callers"}
OIDC = {"settings": {"api": {"oidc": {"issuer": "https://login.example.com", "audience": ["tickover"]}}}}
POLICY = {"name": "p", "match": {"topics": ["t"]}, "delay": {"default": "15m"}, "target": {"allow": ["*"]}}
CUSTOM = {
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
}  # kinds of others, whose schemas Kubernetes hasn't
EVERYTHING: dict[str, Any] = {
    **TOKENS,
    "existingSecret": "more",
    "policies": [POLICY, {**POLICY, "name": "q", "match": {"topics": ["u"]}}],
    "image": {"repository": "tickover", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "ca", "secret": {"secretName": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "shop"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "serviceAccountName": "shop",
    "service": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]},
    "networkPolicy": {
        "enabled": True,
        "from": [{"podSelector": {"matchLabels": {"app": "shop"}}}],
        "egress": [{"ports": [{"protocol": "TCP", "port": 9092}]}],
    },
    "autoscaling": {"enabled": True, "topics": ["orders-retry", "reminders"], "authenticationRef": "kafka"},
    "serviceMonitor": {"enabled": True, "tokenSecret": {"name": "scraper"}},
    "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Kafka"}},
}


@pytest.fixture(scope="module")
def sidecar_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example(tmp_path_factory.mktemp("sidecar"))


def assert_valid(documents: list[Document], version: str) -> None:
    assert documents
    for document in documents:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, OIDC, EVERYTHING], ids=["plain", "oidc", "everything"])
def test_kubernetes_takes_what_is_rendered(version: str, values: dict[str, Any]) -> None:
    assert_valid(render(values, version), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_a_pod_with_the_sidecar(sidecar_chart: Path, version: str) -> None:
    values = {"tickover": {**EVERYTHING, "sidecar": {"stablePodNames": True}}}
    assert_valid(render(version=version, chart=sidecar_chart), version)
    assert_valid(render(values, version, sidecar_chart), version)


def test_a_mistake_is_not_taken() -> None:
    documents = render({"resources": {"limits": {"memory": ["much"]}}})
    with pytest.raises(kubernetes_validate.ValidationError):
        assert_valid(documents, VERSIONS[0])


def test_everything_makes_all_objects_and_nothing_the_fewest() -> None:
    always = {"StatefulSet", "ConfigMap", "PodDisruptionBudget", "Pod"}
    assert kinds(render()) == always
    assert kinds(render(EVERYTHING)) == (always | CUSTOM | {"Service", "NetworkPolicy"}) - {"PodMonitor"}


def test_helm_has_nothing_to_say_about_the_chart() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("version", "kind", "is_native"),
    [
        ("1.28.0", "auto", False),
        ("1.29.0", "auto", True),
        ("1.33.5-gke.100", "auto", True),
        ("1.28.0", "native", True),
        ("1.33.0", "plain", False),
    ],
)
def test_the_sidecar_is_native_where_that_exists(sidecar_chart: Path, version: str, kind: str, is_native: bool) -> None:
    documents = render({"tickover": {"sidecar": {"kind": kind}}}, version, sidecar_chart)
    pod = one(documents, "Deployment", "shop")["spec"]["template"]["spec"]
    restarts = {container["name"]: container.get("restartPolicy") for container in pod.get("initContainers", [])}
    assert restarts == ({"tickover": "Always"} if is_native else {})
    assert [container["name"] for container in pod["containers"]] == (["shop"] if is_native else ["shop", "tickover"])
    mounted = {mount["name"] for _, container in containers(documents) for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_pods_that_carry_the_sidecar_get_no_workload_of_their_own(sidecar_chart: Path) -> None:
    assert kinds(render(chart=sidecar_chart)) == {"Deployment", "ConfigMap", "Secret"}
    everything = render({"tickover": EVERYTHING}, chart=sidecar_chart)
    assert kinds(everything) == {"Deployment", "ConfigMap", "Secret", "PodMonitor", "PrometheusRule"}


def test_a_pod_with_the_sidecar_has_a_token_that_the_sidecar_knows(sidecar_chart: Path, tmp_path: Path) -> None:
    documents = render(chart=sidecar_chart)
    secret = one(documents, "Secret", "shop-tickover-callers")["stringData"]
    (tmp_path / "tokens.yaml").write_text(secret["tokens.yaml"])
    caller = load_tokens(tmp_path / "tokens.yaml").caller(secret["token"])
    assert caller == Caller("shop", Role.WRITE)
    pod = one(documents, "Deployment", "shop")["spec"]["template"]["spec"]
    (shop,) = (container for container in pod["containers"] if container["name"] == "shop")
    reference = {"name": "shop-tickover-callers", "key": "token"}
    assert shop["env"] == [{"name": "TICKOVER_TOKEN", "valueFrom": {"secretKeyRef": reference}}]
    assert {"name": "tickover-tokens", "secret": {"secretName": "shop-tickover-callers"}} in pod["volumes"]


def commands_of(title: str) -> list[list[str]]:
    """Commands for helm in a section of the page, in their order."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    text = page.partition(f"## {title}\n")[2].partition("\n## ")[0].replace("\\\n", " ")
    return [shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith("helm ")]


def test_the_example_of_a_sidecar_can_be_followed_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a fresh checkout; what the last command would install is rendered, for want of a cluster."""
    for chart in (CHART, EXAMPLE):
        shutil.copytree(ROOT / chart, tmp_path / chart.relative_to(ROOT), ignore=NOT_OF_THE_CHECKOUT)
    monkeypatch.chdir(tmp_path)
    *before, last = commands_of("As a sidecar in your own pods")
    assert last[0] == "install"
    with pytest.raises(NotRendered, match="missing in charts/ directory: tickover"):
        helm("template", *last[1:])
    for command in before:
        helm(*command)
    images = [image for image in re.findall(r"image: (\S+)", helm("template", *last[1:])) if image]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    assert {image.strip('"') for image in images} == {
        "registry.example/shop:1.0.0",
        f"registry.example/tickover:{version}",
    }


def test_only_a_pod_that_keeps_its_name_gives_it_to_the_instance(sidecar_chart: Path) -> None:
    def names(documents: list[Document]) -> set[str]:
        return {item["name"] for _, container in containers(documents) for item in container["env"]}

    assert "TICKOVER_INSTANCE_ID" in names(render())
    assert "TICKOVER_INSTANCE_ID" not in names(render(chart=sidecar_chart))
    stable = {"tickover": {"sidecar": {"stablePodNames": True}}}
    assert "TICKOVER_INSTANCE_ID" in names(render(stable, chart=sidecar_chart))


@pytest.mark.parametrize("nobody", ["", None])
def test_where_the_cluster_chooses_the_user_no_container_names_one(sidecar_chart: Path, nobody: str | None) -> None:
    """OpenShift's restricted-v2 refuses any user but those that it has given to the namespace."""
    chosen = [*containers(render({**EVERYTHING, "runAsUser": nobody}))]
    chosen += containers(render({"tickover": {"runAsUser": ""}}, chart=sidecar_chart))
    assert len(chosen) == 3
    for _, container in chosen:
        assert container["securityContext"]["runAsNonRoot"] is True
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & container["securityContext"].keys()
    ((_, large),) = containers([one(render({"runAsUser": 1_000_650_000}), "StatefulSet")])
    assert large["securityContext"]["runAsUser"] == large["securityContext"]["runAsGroup"] == 1_000_650_000


def test_every_container_meets_the_restricted_standard(sidecar_chart: Path) -> None:
    """Kubernetes' Pod Security Standards, level `restricted`, and a root that can't be written."""
    found = [*containers(render(EVERYTHING)), *containers(render(chart=sidecar_chart))]
    assert len(found) == 3
    for pod, container in found:
        context = container["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} <= {"configMap", "emptyDir", "secret"}
        assert not any("hostPort" in port for port in container.get("ports", []))
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/tmp", "/var/lib/tickover"}


@pytest.mark.parametrize(
    ("given", "port", "listening", "asked"),
    [
        ({}, 8231, "::", {}),
        ({"probe_port": 9001}, 9001, "::", {}),
        ({"probe_host": "0.0.0.0"}, 8231, "0.0.0.0", {}),
        ({"probe_host": "[fd00::7]"}, 8231, "fd00::7", {"host": "fd00::7"}),
    ],
)
def test_the_kubelet_asks_where_the_probes_are_answered(
    given: dict[str, Any], port: int, listening: str, asked: dict[str, str]
) -> None:
    documents = render({**TOKENS, "settings": {"api": given}})
    container = next(item for _, item in containers(documents) if item["name"] == "tickover")
    settings = yaml.safe_load(one(documents, "ConfigMap")["data"]["tickover.yaml"])["api"]
    assert (settings["probe_host"], settings["probe_port"]) == (listening, port)
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": port, **asked}
        assert "exec" not in container[probe], "a Python for each question"


def test_containers_beside_a_native_sidecar_begin_when_it_has_started(sidecar_chart: Path) -> None:
    for version, path in (("1.33.0", "/livez?started=true"), ("1.28.0", "/livez")):
        ((_, container),) = containers(render(version=version, chart=sidecar_chart))
        assert container["startupProbe"]["httpGet"]["path"] == path
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_callers_reach_the_port_of_the_settings() -> None:
    documents = render({**TOKENS, "settings": {"api": {"port": 9000}}})
    container = next(item for _, item in containers(documents) if item["name"] == "tickover")
    container = next(item for _, item in containers(documents) if item["name"] == "tickover")
    assert container["ports"] == [{"name": "tickover", "containerPort": 9000}]
    (port,) = one(documents, "Service")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (9000, "tickover")


@pytest.mark.parametrize(
    ("values", "is_reachable"),
    [
        ({}, False),
        (TOKENS, True),
        (OIDC, True),
        ({"settings": {"api": {"allow_unauthenticated": True}}}, True),
    ],
    ids=["nobody", "tokens", "oidc", "unauthenticated"],
)
def test_there_is_a_service_wherever_callers_can_be_known(values: dict[str, Any], is_reachable: bool) -> None:
    documents = render(values)
    settings = yaml.safe_load(one(documents, "ConfigMap")["data"]["tickover.yaml"])
    assert ("Service" in kinds(documents)) == is_reachable
    assert settings["api"].get("host") == ("::" if is_reachable else None)


@pytest.mark.parametrize("host", ["0.0.0.0", "fd00::1", "[fd00::1]"])
def test_the_api_listens_where_the_settings_say(host: str) -> None:
    documents = render({**TOKENS, "settings": {"api": {"host": host}}})
    assert yaml.safe_load(one(documents, "ConfigMap")["data"]["tickover.yaml"])["api"]["host"] == host


@pytest.mark.parametrize("version", VERSIONS)
def test_the_service_has_the_families_of_addresses_that_the_values_name(version: str) -> None:
    families = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    documents = render({**TOKENS, "service": families}, version)
    assert_valid(documents, version)
    assert families.items() <= one(documents, "Service")["spec"].items()
    assert not families.keys() & one(render(TOKENS, version), "Service")["spec"].keys()


def test_a_sidecar_asks_for_little_and_has_no_limit_on_its_processor(sidecar_chart: Path) -> None:
    """A request is taken from every pod that carries it; a limit on CPU would make messages late."""
    ((_, container),) = containers(render(chart=sidecar_chart))
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1536Mi"}}


def test_new_settings_and_policies_need_new_pods() -> None:
    def checksum(values: dict[str, Any]) -> str:
        annotations = one(render(values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/tickover"])

    sums = [checksum(values) for values in ({}, {"settings": {"tick_ms": 2}}, {"policies": [POLICY]}, TOKENS)]
    assert len(set(sums)) == len(sums)
    assert checksum({"replicas": 3}) == checksum({})


def test_policies_arrive_as_they_are_written() -> None:
    text = one(render(EVERYTHING), "ConfigMap")["data"]["policies.yaml"]
    assert [policy.name for policy in parse_policies(text)] == ["p", "q"]


def test_keda_decides_how_many_pods_there_are() -> None:
    documents = render(EVERYTHING)
    assert "replicas" not in one(documents, "StatefulSet")["spec"]
    spec = one(documents, "ScaledObject")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "shop-tickover"}
    assert [trigger["metadata"] for trigger in spec["triggers"]] == [
        {"bootstrapServers": "kafka:9092", "consumerGroup": "tickover", "topic": topic, "lagThreshold": "100000"}
        for topic in ("orders-retry", "reminders")
    ]


def test_a_large_lag_stays_a_whole_number() -> None:
    values = {**EVERYTHING, "autoscaling": {**EVERYTHING["autoscaling"], "lag": 2_000_000}}
    triggers = one(render(values), "ScaledObject")["spec"]["triggers"]
    assert {trigger["metadata"]["lagThreshold"] for trigger in triggers} == {"2000000"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"autoscaling": {"enabled": True}}, "autoscaling.topics is empty"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor needs an API that can be reached"),
        ({"mode": "sidecar", "podMonitor": {"enabled": True}}, "podMonitor needs an API that can be reached"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(NotRendered, match=words):
        render(values)


def test_selectors_find_the_pods() -> None:
    documents = render(EVERYTHING)
    labels = one(documents, "StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
    selectors = {
        "StatefulSet": lambda spec: spec["selector"]["matchLabels"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        "Service": lambda spec: spec["selector"],
    }
    for kind, selector in selectors.items():
        assert selector(one(documents, kind)["spec"]).items() <= labels
    monitor = one(documents, "ServiceMonitor")["spec"]
    service = one(documents, "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} == {
        port["name"] for port in service["spec"]["ports"]
    }


def test_the_pod_monitor_finds_the_pods_that_carry_the_sidecar(sidecar_chart: Path) -> None:
    documents = render({"tickover": EVERYTHING}, chart=sidecar_chart)
    monitor = one(documents, "PodMonitor")
    template = one(documents, "Deployment", "shop")["spec"]["template"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (port,) = (port for _, container in containers(documents) for port in container["ports"])
    assert endpoint == {"port": port["name"], "path": "/metrics", "interval": "30s", "scheme": "http"}
    token = {"podMonitor": {"enabled": True, "tokenSecret": {"name": "scraper"}}}
    (endpoint,) = one(render({"tickover": {**TOKENS, **token}}, chart=sidecar_chart), "PodMonitor")["spec"][
        "podMetricsEndpoints"
    ]
    assert endpoint["authorization"] == {"credentials": {"name": "scraper", "key": "token"}}


def test_where_the_api_has_tls_it_is_scraped_by_https() -> None:
    tls = {"certificate_file": "/etc/tickover-tls/tls.crt", "key_file": "/etc/tickover-tls/tls.key"}
    values = {**TOKENS, "settings": {"api": {"tls": tls}}, "serviceMonitor": {"enabled": True}}
    documents = render(values)
    (endpoint,) = one(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"


NOTES = """kind: Notes
metadata: {name: shop-tickover}
text: {{ tpl (.Files.Get "files/NOTES.txt") . | quote }}
"""


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {},
            ["statefulset/shop-tickover", "helm -n default test shop", "exec shop-tickover-0", "There are no policies"],
        ),
        (
            {**TOKENS, "settings": {"api": {"port": 9000}}, "policies": [POLICY]},
            ["http://shop-tickover.default:9000"],
        ),
        ({"mode": "sidecar", "policies": [POLICY]}, ["inside your own pods", "ConfigMap shop-tickover"]),
    ],
    ids=["plain", "reachable", "sidecar"],
)
def test_the_notes_say_how_to_go_on(values: dict[str, Any], says: list[str], tmp_path: Path) -> None:
    """As a template that is printed: `helm template` leaves notes out, `helm install` asks a cluster."""
    chart = tmp_path / "tickover"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "files" / "NOTES.txt")
    (chart / "templates" / "notes.yaml").write_text(NOTES)
    text = one(render(values, chart=chart), "Notes")["text"]
    assert [words for words in says if words not in text] == []
    assert ("There are no policies" in text) == ("policies" not in values)
    assert ("exec shop-tickover-0" in text) == (values == {})
