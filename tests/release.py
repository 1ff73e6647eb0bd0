"""`make release`: everything of a release but publishing it. `python -m tests.release [directory]`.

    versions -> changelog -> build -> install -> run -> audit -> licences -> chart -> checksums

Each step raises NotReleasable in words, or says what it saw. What is built stays in the directory: reports/release.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from tests.helm import CHART, helm
from tests.source import PACKAGES, ROOT

DIRECTORY: Final = ROOT / "reports" / "release"
LOCK: Final = ROOT / "requirements" / "run.txt"
DEMO_S: Final = 3
STEP_S: Final = 600  # a mirror may be slow; what hangs must end

# Licences that may come with an Apache-2.0 program, as SPDX names them and as older metadata words them.
ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache Software License", "Apache-2.0", "BSD License", "BSD-2-Clause", "BSD-3-Clause",
        "3-Clause BSD License", "ISC", "ISC License (ISCL)", "MIT", "MIT License", "MIT-0", "PSF-2.0",
        "Python Software Foundation License",
        "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)",  # certifi: changed files only would have to be published
    }
)  # fmt: skip
# Others, by package: why this one may.
EXCEPTIONS: Final = {
    "crc32c": "LGPL-2.1-or-later: a module of its own that anybody can replace, unchanged",
}

Say = Callable[[str], None]


class NotReleasable(Exception):
    """Obstacle to a release, in words."""


# --- what is in the tree --------------------------------------------------------------------------------------------


def version_of_project() -> str:
    """The one place where the version is written."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def stated_versions() -> dict[str, str]:
    """Every other place that has to state the version, and what it says."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    stated = {"the chart's version": str(chart["version"]), "the chart's appVersion": str(chart["appVersion"])}
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for number, found in enumerate(re.findall(r"^ARG VERSION=(\S+)", dockerfile, re.MULTILINE), start=1):
        stated[f"the image's label ({number})"] = found
    return stated


def check_versions(say: Say) -> None:
    """All state the same."""
    version = version_of_project()
    wrong = [f"{place} is {found}" for place, found in stated_versions().items() if found != version]
    if wrong:
        raise NotReleasable(f"pyproject.toml has version {version}, but " + ", ".join(wrong))
    say(f"version {version}, also in " + ", ".join(stated_versions()))


def notes_of(changelog: str, version: str) -> tuple[str, str]:
    """(section, its text) that says what is in this version: its own, else Unreleased. Raises NotReleasable."""
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)
    titles = parts[1::2]
    sections = dict(zip(titles, parts[2::2], strict=True))
    if not titles or titles[0] != "[Unreleased]":
        raise NotReleasable("CHANGELOG.md begins with no section [Unreleased]")
    if len(sections) < len(titles):
        raise NotReleasable("CHANGELOG.md has a section twice")
    for title in titles[1:]:
        if not re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", title):
            raise NotReleasable(f"CHANGELOG.md: {title!r} is no `[1.2.3] - 2026-01-31`")
    numbers = [tuple(map(int, title[1 : title.index("]")].split("."))) for title in titles[1:]]
    if numbers != sorted(numbers, reverse=True):
        raise NotReleasable("CHANGELOG.md: the newest version comes first")
    own = [title for title in titles if title.startswith(f"[{version}]")]
    [title] = own or titles[:1]
    if not re.search(r"^- \S", sections[title], re.MULTILINE):
        raise NotReleasable(f"CHANGELOG.md: {title} says nothing")
    return title, sections[title].strip() + "\n"


def check_changelog(say: Say, directory: Path) -> None:
    """There is something to say, and it is in NOTES.md."""
    title, notes = notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version_of_project())
    (directory / "NOTES.md").write_text(notes, encoding="utf-8")
    say(f"notes from {title}, {len(re.findall('^- ', notes, re.MULTILINE))} lines")


# --- what is built --------------------------------------------------------------------------------------------------


def build(say: Say, directory: Path) -> Path:
    """sdist of the tree, wheel of the sdist: so the sdist is whole. Returns the wheel."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(directory)], ROOT)
    [sdist] = directory.glob("*.tar.gz")
    with TemporaryDirectory() as place:
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        [unpacked] = Path(place).iterdir()
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)], unpacked)
    [wheel] = directory.glob("*.whl")
    if not wheel.name.startswith(f"tickover-{version_of_project()}-"):
        raise NotReleasable(f"the wheel is called {wheel.name}")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {place.relative_to(ROOT).as_posix() for package in PACKAGES for place in (ROOT / package).rglob("*")
              if place.is_file() and "__pycache__" not in place.parts}  # fmt: skip
    if packed != wanted:
        raise NotReleasable(f"the wheel lacks or has too much: {sorted(packed ^ wanted)[:10]}")
    say(f"{sdist.name}, and of it {wheel.name} with {len(packed)} files")
    return wheel


def install(say: Say, wheel: Path, place: Path) -> Path:
    """The wheel and its locked dependencies in an environment that has nothing else; returns its `bin`."""
    python = place / "bin" / "python"
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], ROOT)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--no-input", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "--require-hashes", "--requirement", str(LOCK)], ROOT)
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], ROOT)
    run([*pip, "check"], ROOT)
    listed = json.loads(run([*pip, "list", "--format", "json"], ROOT))
    say(f"installed beside {len(listed) - 1} locked packages")
    return python.parent


def try_out(say: Say, binaries: Path, place: Path) -> None:
    """The installed command answers, and delivers delayed messages on the embedded broker; nothing is lost or early."""
    tickover = str(binaries / "tickover")
    said = run([tickover, "--version"], place).strip()
    if said != f"tickover {version_of_project()}":
        raise NotReleasable(f"`tickover --version` says {said!r}")
    run([tickover, "--help"], place)
    run([tickover, "config", "schema"], place)
    demo = [tickover, "demo", "--seconds", str(DEMO_S), "--rate", "5", "--set", f"data_dir={place / 'data'}"]
    run([*demo, "--set", "api.port=0"], place)
    say(f"{said}: --help, config schema, demo --seconds {DEMO_S}: nothing lost, early, wrong or repeated")


# --- what comes with it ---------------------------------------------------------------------------------------------


def audited(report: str, problem: str) -> str:
    """Meaning of pip-audit's JSON, in words; raises NotReleasable for a vulnerability.

    pip-audit takes a package that the service doesn't know for fine, and has no report when the service isn't there.
    """
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        return f"NOT AUDITED: the advisory service can't be reached ({problem.strip().splitlines()[-1:]})"
    found = [
        f"{package['name']} {package['version']}: {fault['id']}"
        for package in packages
        for fault in package.get("vulns", ())
    ]
    if found:
        raise NotReleasable("known vulnerabilities: " + ", ".join(found))
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        return "NOT AUDITED: the advisory service can't be reached, or knows none of the packages"
    return f"{len(packages) - len(unknown)} packages without known vulnerabilities, not known to the service: {unknown}"


def audit(say: Say) -> None:
    """Known vulnerabilities of the locked dependencies."""
    command = [
        sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--requirement", str(LOCK),
        "--format", "json", "--progress-spinner", "off", "--timeout", "10",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, check=False)
    say(audited(done.stdout, done.stderr))


def is_allowed(licence: str) -> bool:
    """Any side of an OR, and all of an AND."""
    return any(
        all(part.strip(" ()") in ALLOWED or part.strip() in ALLOWED for part in re.split(r"\s+AND\s+|;", choice))
        for choice in re.split(r"\s+OR\s+", licence)
    )


def check_licences(packages: Sequence[Mapping[str, str]]) -> None:
    """Raises NotReleasable for a licence that is not on the list, and for an exception that nobody needs."""
    refused = {package["Name"]: package["License"] for package in packages if not is_allowed(package["License"])}
    unforeseen = {name: licence for name, licence in refused.items() if name not in EXCEPTIONS}
    if unforeseen:
        raise NotReleasable(f"licences that are not on the list: {unforeseen}")
    if stale := EXCEPTIONS.keys() - refused.keys():
        raise NotReleasable(f"exceptions that nothing needs: {sorted(stale)}")


def licences(say: Say, binaries: Path, directory: Path) -> None:
    """Licences of all that is installed, in licences.csv."""
    of = ["--python", str(binaries / "python"), "--ignore-packages", "tickover", "--with-urls"]
    command = [sys.executable, "-m", "piplicenses", *of]
    (directory / "licences.csv").write_text(run([*command, "--format", "csv"], ROOT), encoding="utf-8")
    packages = json.loads(run([*command, "--format", "json"], ROOT))
    check_licences(packages)
    say(f"licences of {len(packages)} packages are on the list; by exception {EXCEPTIONS}")


def package_chart(say: Say, directory: Path) -> None:
    """The chart as `helm repo` serves it."""
    helm("package", str(CHART), "--destination", str(directory))
    [package] = directory.glob("*.tgz")
    if package.name != f"tickover-{version_of_project()}.tgz":
        raise NotReleasable(f"the chart's package is called {package.name}")
    helm("lint", str(package))
    say(f"{package.name}, linted")


def checksums(say: Say, directory: Path) -> None:
    """SHA256SUMS of what would be published."""
    names = sorted(path.name for path in directory.iterdir() if path.suffix in (".gz", ".whl", ".tgz"))
    lines = [f"{sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (directory / "SHA256SUMS").write_text("".join(lines))
    say(", ".join(names))


# --- all of it ------------------------------------------------------------------------------------------------------


def run(command: Sequence[str], place: Path) -> str:
    """Output of the command; raises NotReleasable when it fails or doesn't end in time."""
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=STEP_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotReleasable(f"{' '.join(command[:4])} does not end") from None
    if done.returncode:
        raise NotReleasable(
            f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"
        )
    return done.stdout


def dry_run(directory: Path, say: Say) -> None:
    """Every step; what is built is in the directory, which is emptied first."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    check_versions(say)
    check_changelog(say, directory)
    wheel = build(say, directory)
    with TemporaryDirectory() as place:
        binaries = install(say, wheel, Path(place) / "venv")
        try_out(say, binaries, Path(place))
        licences(say, binaries, directory)
    audit(say)
    package_chart(say, directory)
    checksums(say, directory)


def main() -> int:
    """Exit status: 0 when it could be released."""
    try:
        dry_run(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY, lambda words: print(f"  {words}", flush=True))
    except NotReleasable as problem:
        print(f"not to be released: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
