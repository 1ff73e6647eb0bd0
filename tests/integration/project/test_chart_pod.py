"""The chart's pod as a container: its command, files, variables, rights and probes, without a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from testcontainers.core.container import DockerContainer

from sidecar.embedded.child import free_port
from tests.helm import Document, containers, one, render
from tests.services.images import build
from tests.services.kafka import Kafka
from tests.services.kafka_servers import DOCKER
from tests.services.sidecar_process import START_S
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

IMAGE = build
STOP_S = 60


@contextmanager
def started(image: str, documents: list[Document], container: Document, files: Path) -> Iterator[Any]:
    """Run the container as the kubelet would; the namespace of the host stands for the pod's network."""
    for name, text in one(documents, "ConfigMap")["data"].items():
        (files / name).write_text(text)
        (files / name).chmod(0o644)
    context = container["securityContext"]
    made = DockerContainer(image, docker_client_kw=DOCKER, command=container.get("args")).with_kwargs(
        network_mode="host", read_only=context["readOnlyRootFilesystem"], cap_drop=context["capabilities"]["drop"],
        user=f"{context['runAsUser']}:{context['runAsGroup']}", security_opt=["no-new-privileges"],
    )  # fmt: skip
    for item in container["env"]:
        made.with_env(item["name"], item.get("value", "shop-tickover-0"))
    for mount in container["volumeMounts"]:
        if mount["name"] == "tickover-config":
            for file in files.iterdir():
                made.with_volume_mapping(str(file), f"{mount['mountPath']}/{file.name}", "ro")
        else:
            made.with_tmpfs_mount(mount["mountPath"], f"uid={context['runAsUser']}")  # an emptyDir is for everybody
    made.start()
    try:
        yield made.get_wrapped_container()
    finally:
        made.stop(force=True, delete_volume=True)


def succeeds(container: Any, probe: Document) -> bool:
    """As the kubelet asks, from outside."""
    container.reload()
    assert container.status == "running", container.logs().decode()[-2_000:]
    asked = probe["httpGet"]
    try:
        return httpx.get(f"http://127.0.0.1:{asked['port']}{asked['path']}", timeout=START_S).is_success
    except httpx.TransportError:
        return False


def test_the_pod_starts_and_its_probes_agree(image: str, kafka: Kafka, tmp_path: Path) -> None:
    group = kafka.topic("chart")
    documents = render(
        {
            "settings": {
                "group": group,
                "kafka": {"bootstrap_servers": kafka.bootstrap},
                "redis": {"url": "embedded"},
                "shutdown_timeout": f"{STOP_S - 10}s",
                "policies": {"topic": f"{group}.policies"},
                "api": {"port": free_port()},
            },
            "policies": [
                {"name": "p", "match": {"topics": [group]}, "delay": {"default": "1s"}, "target": {"allow": ["*"]}}
            ],
        }
    )
    by_name = {container["name"]: container for _, container in containers(documents)}
    pod, doctor = by_name["tickover"], by_name["doctor"]
    with started(image, documents, pod, tmp_path) as container:

        def last_words() -> str:
            return str(container.logs().decode()[-2_000:])

        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_until(partial(succeeds, container, pod[probe]), START_S, last_words)
        said = [""]

        def is_well() -> bool:
            """Whether the doctor finds all well; it doesn't wait for long, so on a busy machine it is asked again."""
            with started(image, documents, doctor, tmp_path) as examiner:
                status = examiner.wait(timeout=START_S)["StatusCode"]
                said[0] = examiner.logs().decode()
            return (status, "brokers: 1 in cluster" in said[0], "policies: 1 in force" in said[0]) == (0, True, True)

        wait_until(is_well, START_S, lambda: said[0])
        container.stop(timeout=STOP_S)
        assert container.wait()["StatusCode"] == 0, last_words()
