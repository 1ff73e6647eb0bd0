"""Charts as `helm template` renders them: the helm of the environment (pip), else the one on the PATH."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.services.fixtures import missing
from tests.source import ROOT

CHART: Final = ROOT / "charts" / "tickover"
EXAMPLE: Final = ROOT / "examples" / "helm-sidecar"
# What `helm dependency update` makes, where somebody follows docs/kubernetes.md in this checkout.
NOT_OF_THE_CHECKOUT: Final = shutil.ignore_patterns("*.tgz", "Chart.lock")
# Native sidecars are there from 1.29 on, so the first takes the plain container.
VERSIONS: Final = ("1.28.0", "1.33.0", "1.37.0")

Document = dict[str, Any]
Values = Mapping[str, Any]


class NotRendered(Exception):
    """Failure of helm; the text is its stderr."""


def helm(*arguments: str, text: str = "") -> str:
    """Output of helm; raises NotRendered when it fails. Without helm the test is skipped, in CI it fails."""
    beside = Path(sys.executable).with_name("helm")
    program = str(beside) if beside.exists() else shutil.which("helm")
    if program is None:
        missing("helm", "make setup installs it on Linux x86_64, elsewhere put it on the PATH")
    command = [str(program), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise NotRendered(done.stderr)
    return done.stdout


def render(values: Values | None = None, version: str = VERSIONS[-1], chart: Path = CHART) -> list[Document]:
    """The objects of a release `shop`; `values` go over the chart's own."""
    text = yaml.safe_dump(dict(values or {}))
    out = helm("template", "shop", str(chart), "--kube-version", version, "--values", "-", text=text)
    return [document for document in yaml.safe_load_all(out) if document]


def one(documents: list[Document], kind: str, name: str = "shop-tickover") -> Document:
    """The object of this kind and name."""
    (found,) = (item for item in documents if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def kinds(documents: list[Document]) -> set[str]:
    """Kinds of the objects."""
    return {document["kind"] for document in documents}


def containers(documents: list[Document]) -> Iterator[tuple[Document, Document]]:
    """(pod spec, container) of each container that runs tickover."""
    for document in documents:
        pod = document if document["kind"] == "Pod" else document.get("spec", {}).get("template", {})
        for group in ("initContainers", "containers"):
            for container in pod.get("spec", {}).get(group) or []:
                if container["image"].startswith("tickover"):
                    yield pod["spec"], container


def example(place: Path) -> Path:
    """The chart of a user who takes tickover into his pods, with what it depends on, below `place`."""
    chart = place / "examples" / EXAMPLE.name
    shutil.copytree(EXAMPLE, chart, ignore=NOT_OF_THE_CHECKOUT)
    shutil.copytree(CHART, place / "charts" / CHART.name)
    helm("dependency", "update", str(chart))
    return chart
