"""The documents say what is: settings, modules, tests, headers, metrics, calls and links that they name exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from policies.decision import DEAD_REASONS, QUARANTINE_REASONS
from sidecar.cli.app import app
from tests.pages.__main__ import DOCS, PAGES
from tests.pages.commands import leaves as leaves_of
from tests.pages.configuration import rows
from tests.pages.headers import MEANINGS, defined
from tests.pages.metrics import exposed_name, families, labels_of
from tests.pages.rest import roles
from tests.source import PLACES, ROOT, environment_names, python_files
from tests.unit.api_world import World

pytestmark = pytest.mark.slow

DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"))
    if path.is_file()
)
ARCHITECTURE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
FAILURES = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
CONTRACT = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROOF = r"`(test_\w+\.test_\w+)`"
# Read by the client or the command line, not by the settings.
NO_SETTINGS = {"TICKOVER_CONFIG", "TICKOVER_URL", "TICKOVER_TOKEN", "TICKOVER_TOKEN_FILE", "TICKOVER_CA_FILE"}


def section(text: str, title: str) -> str:
    """A document's section of this heading, up to the next of its level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title}"
    return found[1]


def names_in(text: str) -> set[str]:
    """Texts between backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("place", PAGES, ids=lambda place: place.stem)
def test_the_pages_made_from_the_code_are_as_it_is(place: Path) -> None:
    assert place.read_text(encoding="utf-8") == PAGES[place](), "run `make pages`"


def test_every_generated_page_is_generated() -> None:
    assert set((DOCS / "reference").glob("*.md")) - PAGES.keys() == set()


def test_every_variable_of_the_page_of_settings_exists() -> None:
    known = {row.variable for row in rows()} | NO_SETTINGS
    assert environment_names((DOCS / "configuration.md").read_text(encoding="utf-8")) - known == set()


def test_every_header_has_a_meaning_on_its_page() -> None:
    assert MEANINGS.keys() == defined()


def test_every_package_has_its_row_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z_/]+)` \| (?=[^\s|])", section(ARCHITECTURE, "Packages"), re.MULTILINE)
    packages = [
        source.path.parent.relative_to(ROOT).as_posix()
        for source in python_files()
        if source.is_product and source.path.name == "__init__.py"
    ]
    assert sorted(rows) == sorted(packages), "say in docs/ARCHITECTURE.md what each package is for"


def test_files_named_in_the_pages_exist() -> None:
    named = {
        name
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md" and path.parent.name != "decisions"  # these tell of what was
        for name in names_in(path.read_text(encoding="utf-8"))
        if re.fullmatch(rf"(?:{'|'.join(PLACES)})/[a-z_/]+\.py", name)
    }
    assert len(named) > 50
    assert {name for name in named if not (ROOT / name).is_file()} == set()


@pytest.mark.parametrize("page", [ARCHITECTURE, FAILURES], ids=["ARCHITECTURE", "failures"])
def test_files_and_functions_of_the_pages_exist(page: str) -> None:
    sources = {source.place: source.text for source in python_files()}
    named = re.findall(r"`([a-z_/]+\.py)`\s+`([A-Za-z_]+)", page)
    named += [(place, name) for name, place in re.findall(r"`(\w+)`\s+(?:in|of)\s+`([a-z_/]+\.py)`", page)]
    assert len(named) > 5
    faults = []
    for place, name in named:
        text = sources.get(place, "")
        if not re.search(rf"(def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE):
            faults.append(f"{place} has no {name}")
    assert faults == []


def test_tests_named_as_proof_exist() -> None:
    assert re.findall(PROOF, ARCHITECTURE)
    assert re.findall(PROOF, FAILURES)
    functions = {
        f"{source.path.stem}.{name}"
        for source in python_files()
        if source.is_test
        for name in re.findall(r"def (test_\w+)\(", source.text)
    }
    for path in DOCUMENTS:
        assert set(re.findall(PROOF, path.read_text(encoding="utf-8"))) - functions == set(), path.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tables_are_whole(path: Path) -> None:
    """A blank line ends a table: what follows without a head of its own is shown as bars and text."""
    lines = ["", *path.read_text(encoding="utf-8").splitlines(), ""]
    heads = [number for number in range(1, len(lines) - 1) if is_row(lines[number]) and not is_row(lines[number - 1])]
    assert [lines[number] for number in heads if not re.fullmatch(r"[|:\s-]+", lines[number + 1])] == []


def is_row(line: str) -> bool:
    """Whether it is a line of a table."""
    return line.startswith("|")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    faults = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        place = (path.parent / target).resolve() if target else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            faults.append(link)
    assert faults == []


def anchors(path: Path) -> set[str]:
    """Names by which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_contract_names_every_header_and_no_other() -> None:
    assert set(re.findall(r"`(tickover-[a-z-]+[a-z])", CONTRACT)) == defined()


def test_the_contract_names_every_metric_and_no_other() -> None:
    exposed = {exposed_name(family) for family in families()}
    assert set(re.findall(r"`(tickover_[a-z_]+[a-z])", section(CONTRACT, "Metrics"))) == exposed


def test_the_contract_and_the_page_give_every_metric_its_labels() -> None:
    named = re.findall(r"`(tickover_[a-z_]+[a-z])(?:\{([a-z,_]+)\})?`", section(CONTRACT, "Metrics"))
    exposed = {exposed_name(family): set(labels_of(family)) for family in families()}
    assert {name: set(filter(None, labels.split(","))) for name, labels in named} == exposed


def test_the_contract_names_every_reason_and_no_other() -> None:
    named = re.findall(r"^\| `([a-z_]+)` \|", section(CONTRACT, "Reasons"), re.MULTILINE)
    reasons = DEAD_REASONS | QUARANTINE_REASONS
    assert sorted(named) == sorted(reasons)


def test_the_contract_names_every_call_and_no_other() -> None:
    paths = World().app.openapi()["paths"]
    calls = {f"{method.upper()} {path}" for path, operations in paths.items() for method in operations}
    named = set()
    for code in names_in(section(CONTRACT, "REST")):
        if found := re.match(r"((?:[A-Z]+, )*[A-Z]+) (/\S+)", code):
            named |= {f"{method} {found[2]}" for method in found[1].split(", ")}
    assert named == calls | {"GET /docs", "GET /docs/redoc.js", "GET /openapi.json"}  # what describes is not described


def test_the_contract_names_the_role_of_every_call() -> None:
    named: dict[str, str] = {}
    for line in section(CONTRACT, "REST").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!`)\|", line)] if is_row(line) else []
        for code in names_in(cells[1]) if len(cells) > 2 else ():
            if found := re.match(r"((?:[A-Z]+, )*[A-Z]+) (/\S+)", code):
                named |= {f"{method} {found[2]}": cells[2].split()[0] for method in found[1].split(", ")}
    assert roles() == named


def test_commands_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = subprocess.run(
        [sys.executable, "-m", "sidecar", "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=240
    ).stdout
    commands = set(re.findall(r"^  ([a-z-]+)  ", shown, re.MULTILINE))
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        called = {target for code in names_in(text) for target in re.findall(r"^make ([a-z-]+)$", code)}
        assert called - targets == set(), path.name
    assert set(re.findall(r"\.venv/bin/tickover ([a-z-]+)", README)) - commands == set()


def test_the_contract_names_every_command_and_no_other() -> None:
    named: set[str] = set()
    for code in names_in(section(CONTRACT, "Command line")):
        if found := re.fullmatch(r"(?:tickover )?([a-z][a-z-]*(?: [a-z-]+)*(?: [a-z-]+(?:\|[a-z-]+)+)?)", code):
            group, _, leaves = found[1].rpartition(" ")
            named |= {f"{group} {leaf}".strip() for leaf in leaves.split("|")}
    assert named == set(leaves_of(get_command(app)))
