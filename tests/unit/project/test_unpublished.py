"""Nothing is published, so no text may send anybody to a package index, a registry or a chart repository for it."""

import re
from itertools import pairwise

import pytest

from tests.source import ROOT, text_files

# What the changelog and the decisions tell of was so when they were written.
HISTORY = {ROOT / "CHANGELOG.md", *(ROOT / "docs" / "decisions").glob("*.md")}
# Commands that fetch, up to the end of a line, of a command or of what stands in backticks.
FETCHING = re.compile(
    r"\b(?:pip3?|uv pip|uv tool|uv|pipx|poetry|conda) (?:install|add|download|run)\b[^\n`;&|#]*|\buvx [^\n`;&|#]*"
    r"|\b(?:docker|podman|nerdctl|crictl) (?:pull|run)\b[^\n`;&|#]*"
    r"|\bhelm (?:install|upgrade|template|pull|show)\b[^\n`;&|#]*"
)
# As a requirement (extras, versions), as an image without a tag of ours, as a chart of a repository.
FETCHED = re.compile(r"tickover(\[[\w,]+\])?([=~<>!]=?[\w.]+)?|tickover/tickover")
PULLED = re.compile(r"([\w.-]+/)*tickover([:@].*)?")
NAMING = {"--name", "--hostname", "--network", "--user", "--group"}  # what follows is a name that the user gives
PLACES = re.compile(
    r"https?://\S+/(project|packages?)/\S*tickover|image: ?(?!registry\.example)[\w-]+\.[\w.-]+/\S*tickover"
    r"|oci://\S*tickover|helm repo add"
)


def claims_in(text: str) -> list[str]:
    """Commands and places by which a text would fetch what is ours."""
    joined = text.replace("\\\n", " ")
    commands = [found[0] for found in FETCHING.finditer(joined)]
    return [command for command in commands if fetches_ours(command)] + [found[0] for found in PLACES.finditer(joined)]


def fetches_ours(command: str) -> bool:
    """Whether it names the package, the image or the chart by nothing that was made here."""
    words = [word.strip("'\",.:()") for word in command.split()]
    # What helm installs has the release's name before it, so only a repository's name says anything.
    ours = PULLED if " pull" in command else re.compile("tickover/tickover") if words[0] == "helm" else FETCHED
    return any(ours.fullmatch(word) and before not in NAMING for before, word in pairwise(words))


def test_nothing_says_that_something_is_published() -> None:
    files = [path for path in text_files() if path not in HISTORY and path.name != "test_unpublished.py"]
    assert len(files) > 100
    faults = {
        path.relative_to(ROOT).as_posix(): claims
        for path in files
        if (claims := claims_in(path.read_text(encoding="utf-8")))
    }
    assert faults == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install tickover",
        "run `pip install 'tickover[otel]'`.",
        'python -m pip install --upgrade "tickover[otel,pipeline]>=0.2"',
        "pip download --no-deps tickover, then",
        "pip3 install tickover==0.2.0",
        "RUN pip install 'tickover[pipeline]'",
        "uv pip install tickover",
        "uvx tickover",
        "pipx install tickover",
        "https://index.example/project/tickover/",
        "docker pull tickover:0.2.0",
        "podman pull -q registry.example/tickover",
        "docker run --rm tickover",
        "docker run -d --name tickover --read-only \\\n  -e TICKOVER_CONFIG=/tickover.yaml tickover\n",
        "image: images.somewhere/somebody/tickover:0.2.0",
        "helm repo add tickover https://charts.example",
        "helm install tickover oci://registry.example/charts/tickover",
        "helm upgrade --install mine tickover/tickover",
    ],
)
def test_a_claim_is_found(text: str) -> None:
    assert claims_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "make wheel && pip install dist/tickover-0.2.0-py3-none-any.whl",
        'pip install "$(ls dist/tickover-*.whl)[otel]"',
        "pip install 'WHEEL[otel]', with tickover's wheel",
        "pip install -r requirements/run.txt && .venv/bin/tickover run",
        "docker pull python:3.12-slim",
        "docker run -d --name tickover --read-only \\\n  -e A=/etc/tickover/tickover.yaml tickover:local\n",
        "docker run --rm --name tickover tickover:0.2.0 doctor",
        "docker push registry.example/tickover:0.2.0",
        "helm install tickover charts/tickover --values my-values.yaml",
        "helm install shop examples/helm-sidecar --set tickover.image.repository=registry.example/tickover",
        "image: {repository: registry.example/tickover}",
    ],
)
def test_what_is_made_here_is_no_claim(text: str) -> None:
    assert claims_in(text) == []
