"""The project's version and every place that states it: `make version VERSION=1.2.3` writes them all.

    python -m tests.version 1.2.3

pyproject.toml has the version. The other places are read as they are by tools and people that don't know of it, and by
the program itself: what is installed beside a checkout may be of another version. In CHANGELOG.md what was unreleased
becomes the version's section.
"""

import re
import sys
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tests.source import ROOT

VERSION: Final = r"\d+\.\d+\.\d+"
UNRELEASED: Final = "[Unreleased]"
CHANGELOG: Final = "CHANGELOG.md"


class NotReleasable(Exception):
    """Obstacle to a release, in words."""


class Place(NamedTuple):
    """Where a version stands: in this file, wherever it stands between these two (regular expressions)."""

    name: str
    file: str
    before: str
    after: str = ""

    def found_in(self, root: Path) -> list[str]:
        """Versions that stand there; raises NotReleasable where there is none."""
        found = self._pattern().findall((root / self.file).read_text(encoding="utf-8"))
        if not found:
            raise NotReleasable(f"{self.file} states no version where {self.name} was")
        return found

    def write(self, root: Path, version: str) -> None:
        """Raises NotReleasable as `found_in` does."""
        self.found_in(root)
        file = root / self.file
        text = file.read_text(encoding="utf-8")
        file.write_text(self._pattern(f"({self.before})", f"({self.after})").sub(rf"\g<1>{version}\g<3>", text))

    def _pattern(self, before: str = "", after: str = "") -> re.Pattern[str]:
        return re.compile(f"{before or self.before}({VERSION}){after or self.after}", re.MULTILINE)


PROJECT: Final = Place("the project's version", "pyproject.toml", '^version = "', '"$')
PLACES: Final = (
    Place("the code that runs", "sidecar/model/version.py", '^VERSION: Final = "', '"'),
    Place("the image's label", "Dockerfile", "^ARG VERSION=", "$"),
    Place("the chart's version", "charts/tickover/Chart.yaml", "^version: ", "$"),
    Place("the chart's appVersion", "charts/tickover/Chart.yaml", '^appVersion: "', '"$'),
    Place("the example's chart", "examples/helm-sidecar/Chart.yaml", r"- name: tickover\n +version: ", "$"),
    Place("the README's files", "README.md", r"dist/tickover-"),
    Place("the README's image", "README.md", r"tickover:"),
    Place("the page about Kubernetes", "docs/kubernetes.md", "tickover:"),
    Place("the page about Kubernetes, its chart", "docs/kubernetes.md", r"- name: tickover\n +version: "),
)


def version_of_project(root: Path = ROOT) -> str:
    """Version of the package."""
    version: str = tomllib.loads((root / PROJECT.file).read_text(encoding="utf-8"))["project"]["version"]
    return version


def stated_versions(root: Path = ROOT) -> dict[str, str]:
    """Every other place that has to state the version, and what it says; several are told apart by a number.

    Raises NotReleasable for a place that states none, and for a changelog that is out of order.
    """
    stated = {}
    for place in PLACES:
        for number, version in enumerate(place.found_in(root), start=1):
            stated[f"{place.name} ({number})" if number > 1 else place.name] = version
    titles = list(sections_of((root / CHANGELOG).read_text(encoding="utf-8")))
    stated["the changelog's newest section"] = _number(titles[1]) if len(titles) > 1 else "none"
    return stated


def sections_of(changelog: str) -> dict[str, str]:
    """Text of each section by its title, the newest first; raises NotReleasable where they are out of order."""
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)
    titles = parts[1::2]
    sections = dict(zip(titles, parts[2::2], strict=True))
    if not titles or titles[0] != UNRELEASED:
        raise NotReleasable(f"CHANGELOG.md begins with no section {UNRELEASED}")
    if len(sections) < len(titles):
        raise NotReleasable("CHANGELOG.md has a section twice")
    for title in titles[1:]:
        if not re.fullmatch(rf"\[{VERSION}\] - \d{{4}}-\d{{2}}-\d{{2}}", title):
            raise NotReleasable(f"CHANGELOG.md: {title!r} is no `[1.2.3] - 2026-01-31`")
    numbers = [_parts(_number(title)) for title in titles[1:]]
    if numbers != sorted(set(numbers), reverse=True):
        raise NotReleasable("CHANGELOG.md: the newest version comes first, each once")
    return sections


def notes_of(changelog: str, version: str) -> str:
    """Text of the changelog about this version. Raises NotReleasable where it says nothing."""
    for title, text in sections_of(changelog).items():
        if title.startswith(f"[{version}]"):
            if not _lines(text):
                raise NotReleasable(f"CHANGELOG.md: {title} says nothing")
            return text.strip() + "\n"
    raise NotReleasable(f"CHANGELOG.md has no section [{version}]: make version VERSION={version}")


def unreleased_lines(changelog: str) -> int:
    """Lines of changes that no version has yet."""
    return _lines(sections_of(changelog)[UNRELEASED])


def set_version(version: str, today: date, root: Path = ROOT) -> None:
    """Write the version everywhere. Its section of the changelog is what was unreleased.

    Raises NotReleasable, before anything is written, for what is no later version and where nothing is unreleased.
    """
    if not re.fullmatch(VERSION, version):
        raise NotReleasable(f"{version!r} is no version such as 1.2.3")
    if _parts(version) <= _parts(version_of_project(root)):
        raise NotReleasable(f"{version} is not later than {version_of_project(root)}")
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    if not unreleased_lines(changelog):
        raise NotReleasable("CHANGELOG.md: nothing is unreleased")
    places = (PROJECT, *PLACES)
    for place in places:
        place.found_in(root)
    for place in places:
        place.write(root, version)
    head = f"## {UNRELEASED}\n"
    section = f"{head}\n## [{version}] - {today.isoformat()}\n"
    (root / CHANGELOG).write_text(changelog.replace(head, section, 1), encoding="utf-8")


def _number(title: str) -> str:
    return title[1 : title.index("]")]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _lines(text: str) -> int:
    return len(re.findall(r"^- \S", text, re.MULTILINE))


def main() -> int:
    """Exit status: 0 when all places state the version."""
    try:
        set_version("".join(sys.argv[1:2]), datetime.now(UTC).date())
    except NotReleasable as problem:
        print(f"not changed: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
