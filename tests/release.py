"""`make release`: everything of a release but publishing it. `make wheel`, `make chart`, `make sbom` are steps of it.

    python -m tests.release [wheel|chart|sbom] DIRECTORY

    versions -> changelog -> build -> sbom -> install -> run -> licences -> audit -> chart -> image -> checksums

Each step raises NotReleasable in words, or says what it saw. What is built stays in the directory.
"""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.helm import CHART, helm
from tests.source import PACKAGES, ROOT
from tests.version import CHANGELOG, NotReleasable, notes_of, stated_versions, unreleased_lines, version_of_project

# What a release has made: what a former one left goes, and nothing else that may be in the directory.
MADE: Final = ("tickover-[0-9]*", "NOTES.md", "SHA256SUMS", "licences.csv", "sbom.cdx.json")
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


# --- what is in the tree --------------------------------------------------------------------------------------------


def check_versions(say: Say) -> None:
    """All state the same."""
    version, stated = version_of_project(), stated_versions()
    wrong = [f"{place} is {found}" for place, found in stated.items() if found != version]
    if wrong:
        raise NotReleasable(f"pyproject.toml has version {version}, but " + ", ".join(wrong))
    say(f"version {version}, also in " + ", ".join(stated))


def check_changelog(say: Say, directory: Path) -> None:
    """There is something to say, and it is in NOTES.md."""
    changelog = (ROOT / CHANGELOG).read_text(encoding="utf-8")
    notes = notes_of(changelog, version_of_project())
    (directory / "NOTES.md").write_text(notes, encoding="utf-8")
    later = unreleased_lines(changelog)
    say(f"notes: {len(notes.splitlines())} lines" + (f", {later} changes not among them: unreleased" if later else ""))


# --- what is built --------------------------------------------------------------------------------------------------


def build(say: Say, directory: Path) -> Path:
    """sdist of the tree, wheel of the sdist: so the sdist is whole. Returns the wheel."""
    version = version_of_project()
    sdist, wheel = directory / f"tickover-{version}.tar.gz", directory / f"tickover-{version}-py3-none-any.whl"
    run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(directory)], ROOT)
    with TemporaryDirectory() as place:
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        [unpacked] = Path(place).iterdir()
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)], unpacked)
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {place.relative_to(ROOT).as_posix() for package in PACKAGES for place in (ROOT / package).rglob("*")
              if place.is_file() and "__pycache__" not in place.parts}  # fmt: skip
    if packed != wanted:
        raise NotReleasable(f"the wheel lacks or has too much: {sorted(packed ^ wanted)[:10]}")
    say(f"{sdist.name}, and of it {wheel.name} with {len(packed)} files")
    return wheel


def environment(place: Path) -> Path:
    """An environment that has the locked dependencies and nothing else; returns its Python."""
    python = place / "bin" / "python"
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], ROOT)
    run([*pip_for(python), "install", "--quiet", "--require-hashes", "--requirement", str(LOCK)], ROOT)
    return python


def pip_for(python: Path) -> list[str]:
    """Command that begins a call of our own pip for another environment."""
    return [sys.executable, "-m", "pip", "--python", str(python), "--no-input", "--disable-pip-version-check"]


def install(say: Say, wheel: Path, python: Path) -> Path:
    """The wheel beside its locked dependencies, without an index; returns the environment's `bin`."""
    run([*pip_for(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)], ROOT)
    run([*pip_for(python), "check"], ROOT)
    listed = json.loads(run([*pip_for(python), "list", "--format", "json"], ROOT))
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


def bill_of_materials(say: Say, python: Path, directory: Path) -> None:
    """sbom.cdx.json: what is locked, with licences and what needs what, as CycloneDX; of an environment without us."""
    bill = directory / "sbom.cdx.json"
    run(
        [
            sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", "pyproject.toml",
            "--mc-type", "application", "--spec-version", "1.6", "--output-reproducible", "--of", "JSON",
            "--output-file", str(bill), str(python),
        ],
        ROOT,
    )  # fmt: skip
    say(f"{bill.name}: {len(json.loads(bill.read_text(encoding='utf-8'))['components'])} components")


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
    """The chart as one file, which `helm install` takes."""
    helm("package", str(CHART), "--destination", str(directory))
    package = directory / f"tickover-{version_of_project()}.tgz"
    helm("lint", str(package))
    say(f"{package.name}, linted")


def save_image(say: Say, image: str, directory: Path) -> None:
    """The image as a file, which `docker load` takes."""
    archive = directory / f"tickover-{version_of_project()}-image.tar"
    run(["docker", "save", "--output", str(archive), image], ROOT)
    say(f"{archive.name}: {archive.stat().st_size >> 20} MiB")


def checksums(say: Say, directory: Path) -> None:
    """SHA256SUMS of all that was made."""
    lines = []
    for path in made(directory):
        with path.open("rb") as file:
            lines.append(f"{file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (directory / "SHA256SUMS").write_text("".join(lines))
    say(f"checksums of {len(lines)} files")


def made(directory: Path) -> list[Path]:
    """Files of a release that are in the directory, by name."""
    return sorted(path for pattern in MADE for path in directory.glob(pattern))


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


def prepare(directory: Path, say: Say) -> None:
    """Every step but the image and the checksums. The directory then has what was built, nothing of a former one."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in made(directory):
        path.unlink()
    check_versions(say)
    check_changelog(say, directory)
    wheel = build(say, directory)
    with TemporaryDirectory() as place:
        python = environment(Path(place) / "venv")
        bill_of_materials(say, python, directory)
        binaries = install(say, wheel, python)
        try_out(say, binaries, Path(place))
        licences(say, binaries, directory)
    audit(say)
    package_chart(say, directory)


def release(directory: Path, say: Say) -> None:
    """All that is released, with checksums."""
    prepare(directory, say)
    run(["make", "image"], ROOT)
    save_image(say, f"tickover:{version_of_project()}", directory)
    checksums(say, directory)


def one_step(step: str, directory: Path, say: Say) -> None:
    """A part of a release alone; what else is in the directory stays."""
    directory.mkdir(parents=True, exist_ok=True)
    match step:
        case "wheel":
            build(say, directory)
        case "chart":
            package_chart(say, directory)
        case "sbom":
            with TemporaryDirectory() as place:
                bill_of_materials(say, environment(Path(place) / "venv"), directory)
        case _:
            raise NotReleasable(f"{step!r} is none of wheel, chart and sbom")


def main() -> int:
    """Exit status: 0 when it could be released."""

    def say(words: str) -> None:
        print(f"  {words}", flush=True)

    *step, directory = sys.argv[1:]
    try:
        if step:
            one_step(step[0], Path(directory), say)
        else:
            release(Path(directory), say)
    except NotReleasable as problem:
        print(f"not to be released: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
