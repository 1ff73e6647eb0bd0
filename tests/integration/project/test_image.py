"""The container image: what is in it, that it needs no right to write, and a sidecar killed beside its consumer."""

import json
import re
import subprocess
import tarfile
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import docker
import pytest
from testcontainers.core.container import DockerContainer

from sidecar.embedded.child import free_port
from tests.release import save_image
from tests.services.images import build, python_image
from tests.services.kafka import Kafka
from tests.services.kafka_servers import DOCKER
from tests.services.waiting import WAIT_S, wait_until
from tests.source import ROOT
from tests.version import version_of_project

pytestmark = [pytest.mark.integration, pytest.mark.apart, pytest.mark.timeout(900)]

IMAGE: Final = build
# Unpacked, base and all.
BYTES_MAX: Final = 200_000_000
HEALTHY_S: Final = 300.0
STOP_S: Final = 60
DATA = {"/var/lib/tickover": "mode=1777,size=256m", "/tmp": "size=16m"}
ANYBODY: Final = 1_000_650_000  # as OpenShift gives it out: no entry in /etc/passwd
POLICY = """\
name: {topic}-retry
match: {{topics: ["{topic}-retry"]}}
retry: {{attempts: 5, backoff: {{kind: fixed, delay: 15s}}}}
target: {{topic: {topic}, allow: ["{topic}"]}}
"""


patient = partial(DockerContainer, docker_client_kw=DOCKER)


@contextmanager
def running(container: DockerContainer) -> Iterator[Any]:
    """The container, as the Docker library has it; removed at the end."""
    container.start()
    try:
        yield container.get_wrapped_container()
    finally:
        container.stop(force=True, delete_volume=True)


def words(container: Any) -> str:
    text: str = container.logs().decode()
    return text


def wait_for_health(container: Any) -> None:
    def is_healthy() -> bool:
        container.reload()
        assert container.status == "running", words(container)
        return bool(container.attrs["State"]["Health"]["Status"] == "healthy")

    wait_until(is_healthy, HEALTHY_S, otherwise=lambda: words(container)[-2_000:])


def revision() -> str:
    """The commit that is checked out; `unknown` where there is no repository."""
    asked = ["sh", "-c", "git rev-parse HEAD 2>/dev/null || echo unknown"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_the_image_says_what_it_is_and_runs_as_nobody(image: str) -> None:
    client = docker.from_env(**DOCKER)
    own = client.images.get(image)
    client.close()
    config = own.attrs["Config"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels == {
        "title": project["name"],
        "description": project["description"],
        "licenses": project["license"],
        "version": project["version"],
        "revision": revision(),
        "base.name": python_image(),
    }
    assert (config["User"], config["StopSignal"], config["Entrypoint"]) == ("10001", "SIGTERM", ["tickover"])
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "bash"]


def test_it_is_small_and_has_nothing_that_installs(image: str) -> None:
    client = docker.from_env(**DOCKER)
    own, base = client.images.get(image).attrs["Size"], client.images.get(python_image()).attrs["Size"]
    print(f"{own / 1e6:.0f} MB on a base of {base / 1e6:.0f} MB")
    assert own < BYTES_MAX
    tried = "for name in pip pip3 apt apt-get perl gcc curl; do command -v $name; done; exit 0"
    found = client.containers.run(image, ["-c", tried], entrypoint="sh", remove=True)
    client.close()
    assert found == b""


def test_the_system_of_its_base_is_whole(image: str) -> None:
    """Copied into one layer: owners, rights, the list of packages, and the trusted authorities."""
    looked = """
import os, pwd, ssl, stat, subprocess
print(pwd.getpwuid(os.stat("/var/lib/tickover").st_uid).pw_name)
print(*(stat.filemode(os.stat(place).st_mode) for place in ("/tmp", "/etc/shadow", "/bin/sh")))
print(subprocess.check_output(["dpkg-query", "-W", "-f", "${db:Status-Status}", "libc6"], text=True))
print("authorities" if len(ssl.create_default_context().get_ca_certs()) > 50 else "none")
"""
    client = docker.from_env(**DOCKER)
    said = client.containers.run(image, ["-c", looked], entrypoint="python", remove=True).decode().splitlines()
    client.close()
    assert said == ["tickover", "drwxrwxrwt -rw-r----- -rwxr-xr-x", "installed", "authorities"]


def test_it_runs_on_a_root_that_nobody_can_write_and_ends_when_asked(image: str) -> None:
    """Embedded: Kafka, Redis and the engine write to the two places that are given, and nowhere else. By any user."""
    locked = patient(
        image, env={"TICKOVER_SHUTDOWN_TIMEOUT": f"{STOP_S - 10}s"}, user=f"{ANYBODY}:0",
        read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"],
    )  # fmt: skip
    for place, options in DATA.items():
        locked.with_tmpfs_mount(place, options)
    with running(locked) as container:
        wait_for_health(container)
        code, text = container.exec_run(["python", "-c", "open('/opt/tickover/x', 'w')"])
        assert (code, b"Read-only file system" in text) == (1, True)
        tried = ["python", "-c", "import os, sidecar.service.tracing; print(os.getuid()); import pip"]
        code, (said, failed) = container.exec_run(tried, demux=True)  # as one stream they come in either order
        assert (code, said, b"No module named 'pip'" in failed) == (1, b"%d\n" % ANYBODY, True)
        container.stop(timeout=STOP_S)
        assert container.wait()["StatusCode"] == 0, words(container)
        assert '"stopped"' in words(container)


def test_a_sidecar_is_killed_beside_its_consumer_and_nothing_is_lost_or_repeated(
    image: str, kafka: Kafka, tmp_path: Path
) -> None:
    topic, port = kafka.topic("orders"), free_port()
    kafka.create_topic(f"{topic}-retry")
    policies = tmp_path / "policies.yaml"
    policies.write_text(POLICY.format(topic=topic))
    policies.chmod(0o644)
    example = (ROOT / "examples" / "retrying_consumer.py").read_text(encoding="utf-8")
    code = example.replace('"orders', f'"{topic}').replace('"shop"', f'"{topic}-shop"')
    environment = {"TICKOVER_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap}
    own = {"TICKOVER_GROUP": topic, "TICKOVER_INSTANCE_ID": "one", "TICKOVER_API__PORT": str(port),
           "TICKOVER_POLICIES__FILE": "/etc/tickover/policies.yaml"}  # fmt: skip
    # One network for both, as in a pod: the host's, where the broker is.
    beside = patient(image, env=environment | own, network_mode="host")
    beside.with_volume_mapping(str(policies), "/etc/tickover/policies.yaml", "ro")
    shop = patient(image, env=environment, network_mode="host", entrypoint=["python", "-uc", code])

    def accepted() -> bool:
        return re.search(rf'tickover_accepted_total{{topic="{topic}-retry"}} [1-9]', metrics(port)) is not None

    with running(beside) as sidecar, running(shop) as consumer:
        wait_until(accepted, HEALTHY_S, otherwise=lambda: words(sidecar)[-2_000:] + words(consumer))
        sidecar.kill()
        sidecar.wait()
        assert "done" not in words(consumer)
        sidecar.start()
        assert consumer.wait(timeout=HEALTHY_S)["StatusCode"] == 0, words(consumer)
        assert consumer.logs(stderr=False).decode() == (  # where the broker is slow, the client says so on the other
            "order 1, attempt 1: the warehouse does not answer\n"
            "order 1, attempt 2: the warehouse does not answer\n"
            "order 1, attempt 3: done\n"
        )


def metrics(port: int) -> str:
    """Metrics that the sidecar on this port exposes; empty while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


def test_the_image_is_saved_as_a_file_that_says_its_name(image: str, tmp_path: Path) -> None:
    save_image(print, image, tmp_path)
    [archive] = tmp_path.iterdir()
    with tarfile.open(archive) as files:
        manifest = files.extractfile("manifest.json")
        assert manifest is not None
        [saved] = json.load(manifest)
    assert (archive.name, saved["RepoTags"]) == (f"tickover-{version_of_project()}-image.tar", [image])
