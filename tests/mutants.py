"""Deliberate mistakes in the engine, each of which the simulation must find: `python -m tests.mutants [--only name]`.

A copy of the sources gets one mistake at a time and goes through the seeds until one fails. A mutant whose text isn't
in the source any more is an error: it must move with the code.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutations import ENGINE
from tests.mutations import MUTANTS as OF_THE_ENGINE
from tests.operations.mutations import MUTANTS as OF_OPERATIONS
from tests.overflow_mutations import MUTANTS as OF_THE_OVERFLOW
from tests.source import ROOT

MUTANTS: Final = {**OF_THE_ENGINE, **OF_THE_OVERFLOW, **OF_OPERATIONS}
SEEDS: Final = 300  # a budget: most are found by the first three
TIMEOUT_S: Final = 1_800.0
BY_SEEDS: Final = "not met_everything"  # that something never happens any more is no proof of a mistake
WORKERS: Final = 2
COPIED: Final = ("sidecar", "policies", "api", "pipeline", "purgatory", "broker", "tests", "pyproject.toml")
RECORDED: Final = ROOT / "docs" / "reliability" / "mutants.json"


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a mutant. `seed` is the first that found it, 0: none did. `test`: one without seeds that did."""

    name: str
    found: bool
    seed: int
    seconds: float
    why: str
    test: str = ""


class Bench:
    """A copy of the sources in which one mutant lives at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, directory / name)

    def check(self, seeds: int) -> str:
        """Why the unharmed copy fails; empty when it doesn't."""
        done = self._simulate(seeds)
        return "" if done.returncode == 0 else done.stdout[-2_000:]

    def try_out(self, name: str, seeds: int) -> Result:
        """Put the mutant in, simulate until a seed fails, and take it out again."""
        mutant = MUTANTS[name]
        path = self._directory / mutant.path
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return Result(name, False, 0, 0.0, f"its text is {text.count(mutant.old)} times in {mutant.file}")
        path.write_text(text.replace(mutant.old, mutant.new))
        started_s = time.monotonic()
        try:
            done = self._simulate(seeds, mutant.tests, mutant.suite)
        except subprocess.TimeoutExpired:  # a result like any other: the next one has its turn
            took_s = round(time.monotonic() - started_s, 1)
            return Result(name, False, 0, took_s, f"not found within {TIMEOUT_S:,.0f} s")
        finally:
            path.write_text(text)
        seed = re.search(r"FAILED .*\[(\d+)\]", done.stdout)
        test = re.search(r"FAILED tests/.*?(\w+)\.py::(?:\w+::)?(\w+)", done.stdout)
        why = re.search(r"^E +(.*)", done.stdout, re.MULTILINE)
        return Result(
            name,
            done.returncode == 1,
            int(seed[1]) if seed else 0,
            round(time.monotonic() - started_s, 1),
            why[1][:160] if why else "",
            f"{test[1]}.{test[2]}" if test and not seed else "",
        )

    def _simulate(self, seeds: int, tests: str = "", suite: str = ENGINE) -> subprocess.CompletedProcess[str]:
        # Without assertions of the engine's own the world's and the oracle's would still be there: both count.
        command = [sys.executable, "-m", "pytest", f"tests/{suite}", "-x", "-q", "--no-header"]
        command += ["-k", tests or BY_SEEDS]
        return subprocess.run(
            [*command, "-p", "no:cacheprovider", "--tb=short", "--show-capture=no"],
            cwd=self._directory,
            env={
                **os.environ,
                "TICKOVER_TEST_SIM_SEEDS": str(seeds),
                "TICKOVER_TEST_SIM_REDIS_SEEDS": str(seeds),
                "TICKOVER_TEST_OPERATIONS_SEEDS": str(seeds),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )


def record(results: Sequence[Result], seeds: int) -> None:
    """Keep what was found, beside what is known of those that were not tried this time."""
    known = json.loads(RECORDED.read_text())["results"] if RECORDED.exists() else []
    found = {**{one["name"]: one for one in known}, **{result.name: asdict(result) for result in results}}
    RECORDED.parent.mkdir(exist_ok=True)
    kept = [found[name] for name in MUTANTS if name in found]
    RECORDED.write_text(json.dumps({"seeds": seeds, "results": kept}, indent=1) + "\n")


def main() -> int:
    """Try them all; status 1 when one lives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="those with this text in their name, or in that of their suite")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--record", action="store_true", help=f"write the results to {RECORDED.relative_to(ROOT)}")
    given = parser.parse_args()
    wanted = [name for name, mutant in MUTANTS.items() if given.only in name or given.only in mutant.suite]
    benches: SimpleQueue[Bench] = SimpleQueue()

    def try_out(name: str) -> Result:
        bench = benches.get()
        try:
            result = bench.try_out(name, given.seeds)
        finally:
            benches.put(bench)
        print("found   " if result.found else "SURVIVED", result, flush=True)
        return result

    with (
        tempfile.TemporaryDirectory(prefix="tickover-mutants-") as directory,
        ThreadPoolExecutor(given.workers) as workers,
    ):
        for number in range(given.workers):
            benches.put(Bench(Path(directory) / str(number)))
        results = list(workers.map(try_out, wanted))
    found = sum(result.found for result in results)
    print(f"{found} of {len(results)} mutants found, {given.seeds} seeds at most")
    if given.record:
        record(results, given.seeds)
    return int(found < len(results) or not results)


if __name__ == "__main__":
    sys.exit(main())
