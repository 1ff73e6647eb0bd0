"""docs/RELIABILITY.md from recorded runs: `python -m tests.reliability [--junit reports/reliability.xml]`.

With `--junit` the results of a test run are recorded first: in docs/reliability/tests.json, for the test files of
`EXPERIMENTS`. Soak, nemesis and mutants record themselves with their own `--record`. What was found is written by hand,
in docs/reliability/found.yaml, which mutants take the mends of which holes out in holes.yaml, and the long runs of the
simulations in simulation.json and operations.json.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import yaml

from tests.mutants import MUTANTS
from tests.source import ROOT

PAGE: Final = ROOT / "docs" / "RELIABILITY.md"
RECORDS: Final = ROOT / "docs" / "reliability"
SAID_MAX: Final = 12  # lines of a test's own words
# What a test says that is worth keeping: the oracle's figures.
WORTH: Final = re.compile(
    r"lost \d|states$|hostile records|memory at most|longest of|repeated after each kill|lost, once"
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A test file, what it is about, and the command that repeats it."""

    file: str
    what: str
    command: str


EXPERIMENTS: Final = (
    Experiment(
        "tests/simulation/test_simulation.py",
        "The real engine between fakes on a clock of its own: kills at any call, stops, expired sessions, rebalances, "
        "changed policies, a Redis that is slow, full, away or has lost data. One test is one seed",
        "TICKOVER_TEST_SIM_SEEDS=500 make sim",
    ),
    Experiment(
        "tests/simulation/test_simulation_redis.py",
        "The same runs over the real overflow: its own code on a real server, with limits that each run meets. "
        "Connections break between any two commands, and each answer is compared with what is held",
        "TICKOVER_TEST_SIM_REDIS_SEEDS=50 make sim-redis",
    ),
    Experiment(
        "tests/model/test_model.py",
        "Emit, seal, mark, commit, fence: every order of steps of a small case, by spin; each deliberate bug is found",
        ".venv/bin/pytest tests/model -s",
    ),
    Experiment(
        "tests/integration/engine/test_failpoints.py",
        "The process killed at each named point of a record's journey, on real Kafka and Redis",
        "TICKOVER_TEST_SOAK=1 .venv/bin/pytest tests/integration/engine/test_failpoints.py -s",
    ),
    Experiment(
        "tests/integration/engine/test_crashes.py",
        "Twenty kills at random moments under load",
        ".venv/bin/pytest tests/integration/engine/test_crashes.py -s",
    ),
    Experiment(
        "tests/integration/engine/test_rebalance.py",
        "One to three processes that join, leave, restart and die under load",
        ".venv/bin/pytest tests/integration/engine/test_rebalance.py -s",
    ),
    Experiment(
        "tests/integration/overflow/test_redis_faults.py",
        "Each Redis command's answer lost once, connections cut, slow; the server frozen, killed, restarted, full",
        ".venv/bin/pytest tests/integration/overflow/test_redis_faults.py -s",
    ),
    Experiment(
        "tests/integration/engine/test_faults.py",
        "Brokers that go away, sources that are created again or grow, targets that refuse, a ledger that is deleted",
        ".venv/bin/pytest tests/integration/engine/test_faults.py",
    ),
    Experiment(
        "tests/integration/engine/test_kafka_changes.py",
        "Targets deleted, grown or forbidden, offsets set back, retention that overtakes open records",
        ".venv/bin/pytest tests/integration/engine/test_kafka_changes.py",
    ),
    Experiment(
        "tests/integration/engine/intake/test_poison.py",
        "Hostile records, one by one, each with the exit by which it must leave",
        ".venv/bin/pytest tests/integration/engine/intake/test_poison.py -s",
    ),
    Experiment(
        "tests/unit/engine/test_burst.py",
        "Ten million records due in the same second, on a simulated clock",
        ".venv/bin/pytest tests/unit/engine/test_burst.py -s",
    ),
    Experiment(
        "tests/integration/project/test_nemesis.py",
        "A minute or two of the nemesis: a leader killed, links cut one way and both ways, on three brokers",
        ".venv/bin/pytest tests/integration/project/test_nemesis.py -s",
    ),
    Experiment(
        "tests/integration/project/test_soak.py",
        "A minute of the soak: processes killed, paused, a clock that steps, Redis wiped, the broker killed and frozen",
        ".venv/bin/pytest tests/integration/project/test_soak.py -s",
    ),
)

PROMISES: Final = """\
| promise | `at_least_once` | `exactly_once` |
|---|---|---|
| lost: accepted, and never emitted, dead-lettered or quarantined | never | never |
| early: appended to its target by the broker before it was due | never | never |
| changed: another key, value, header or place than it must have | never | never |
| invented: emitted without having been accepted | never | never |
| repeated, to readers with `isolation.level=read_committed` | after a crash, since the last block | never |
"""


# --- recording ----------------------------------------------------------------------------------------------------


def record_junit(path: Path) -> None:
    """Keep what a test run says about the experiments; those that were not run stay as they were."""
    target = RECORDS / "tests.json"
    known: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    fresh: dict[str, dict[str, Any]] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        file = (case.get("classname") or "").replace(".", "/") + ".py"
        if file not in {experiment.file for experiment in EXPERIMENTS}:
            continue
        entry = fresh.setdefault(file, {"tests": 0, "passed": 0, "seconds": 0.0, "said": []})
        entry["tests"] += 1
        entry["passed"] += not any(case.find(word) is not None for word in ("failure", "error", "skipped"))
        entry["seconds"] = round(entry["seconds"] + float(case.get("time") or 0), 1)
        lines = (case.findtext("system-out") or "").splitlines()
        entry["said"] = [*entry["said"], *(line.strip() for line in lines if WORTH.search(line))][:SAID_MAX]
    RECORDS.mkdir(exist_ok=True)
    target.write_text(json.dumps({**known, **fresh}, indent=1, sort_keys=True) + "\n")


# --- the page -----------------------------------------------------------------------------------------------------


def page() -> str:
    """The page as the records have it."""
    head = (
        "# Reliability\n\nWhat is promised, how it was tried, and what came of it. "
        "This page is written by `.venv/bin/python -m tests.reliability` from the runs recorded in "
        "[docs/reliability](reliability).\n"
    )
    sections = [
        head,
        "## Promised\n\n" + PROMISES,
        "## Tried\n\n" + _tried(),
        "## Simulation\n\n" + _simulation(),
        "## Simulation of operations\n\n" + _operations(),
        "## Soak\n\n" + _soak(),
        "## Nemesis\n\n" + _nemesis(),
        "## Mutants\n\n" + _mutants(),
        "## Holes in what operators start\n\n" + _holes(),
        "## Found and mended\n\n" + _found(),
    ]
    return "\n".join(sections)


def _load(name: str) -> Any:
    path = RECORDS / name
    return json.loads(path.read_text()) if path.exists() else {}


def _tried() -> str:
    records = _load("tests.json")
    lines = ["| what | tests | passed | seconds | again |", "|---|---|---|---|---|"]
    said = []
    for experiment in EXPERIMENTS:
        entry = records.get(experiment.file)
        if entry is None:
            continue
        figures = f"{entry['tests']} | {entry['passed']} | {entry['seconds']:.0f}"
        lines.append(f"| {experiment.what} | {figures} | `{experiment.command}` |")
        if entry["said"]:
            name = Path(experiment.file).stem
            said.append("\n".join([f"`{name}` says:\n", "```", *entry["said"], "```\n"]))
    return "\n".join(lines) + "\n\n" + "\n".join(said)


def _simulation() -> str:
    record = _load("simulation.json")
    if not record:
        return "Not recorded yet.\n"
    first, seeds, failed = record["first"], record["seeds"], record["failed"]
    head = (
        f"Seeds {first} to {first + seeds - 1} of each guarantee: {2 * seeds:,} runs, in pieces of {record['piece']} "
        f"while the code went on. {len(failed)} failed when they were run first; each is mended and passes now, "
        f"but where the table says otherwise. {record['besides']} "
        f"Again: `TICKOVER_TEST_SIM_FIRST={first} TICKOVER_TEST_SIM_SEEDS={seeds} make sim`.\n"
    )
    lines = [
        head,
        "| seed | guarantee | at fault |", "|---|---|---|",
        *(f"| {one['seed']} | `{one['guarantee']}` | {one['fault']} |" for one in failed),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


OPERATIONS: Final = {
    "policies": "put, changed and deleted, over replicas that restart, have sources of their own, find brokers away",
    "schedules": "made, changed, paused, deleted and made anew, by replicas whose clocks are wrong; those that write "
    "die, take over in the middle, and meet silent partitions, refusals and lost answers",
    "changes": "bulk changes planned and run by processes that die, while others act on the same messages, sources are "
    "made anew, and partitions don't answer",
    "redrives": "of the same letters by several plans, by processes that die, are paused and taken over, with letters "
    "that Kafka refuses, aborts, retention, and a topic that is made anew",
    "jobs": "planned, begun and aborted by replicas that die and stand still for longer than their leases, with clocks "
    "that differ, over a topic that is compacted, forgets after 30 days, and has what anybody writes to it",
    "messages": "sent again under their Idempotency-Key, cancelled and looked up, while answers and Redis are lost",
}


def _operations() -> str:
    record = _load("operations.json")
    if not record:
        return "Not recorded yet.\n"
    head = (
        "Operators at work, with an oracle that knows what must become of each message, letter and occurrence. Again: "
        "`make sim-operations`.\n"
    )
    lines = [head, "| what | seeds | failed when run first |", "|---|---|---|"]
    for name, what in OPERATIONS.items():
        failed = "; ".join(record[name]["failed"]) or "none"
        lines.append(f"| {name}: {what} | 1 to {record[name]['seeds']:,} | {failed} |")
    return "\n".join(lines) + "\n"


def _soak() -> str:
    record = _load("soak.json")
    if not record:
        return "Not recorded yet.\n"
    from tests.soak.__main__ import Row, table

    rows = [Row(**{**row, "faults": tuple(row["faults"]), "notes": tuple(row["notes"])}) for row in record["rows"]]
    violated = sum(row.violated for row in rows)
    words = (
        f"Random faults for {record['minutes']:.0f} minutes, seed {record['seed']}: {len(rows)} rounds, "
        f"{violated} violated. Again: `make soak`, or the same rounds with "
        f"`.venv/bin/python -m tests.soak --seed {record['seed']}`. In the load: delayed messages; cancel, "
        "reschedule and fire; changes of many messages; redrives; a schedule.\n\n"
    )
    remark = f"{record['remark']}\n\n" if "remark" in record else ""
    return words + remark + table(rows) + "\n"


def _nemesis() -> str:
    record = _load("nemesis.json")
    if not record:
        return "Not recorded yet.\n"
    from tests.nemesis.report import goals, goals_table, read, rounds_table

    run = read(record)
    where = f"no links were cut: {run.uncut}" if run.uncut else "each in a network namespace, so that links can be cut"
    words = (
        f"Three brokers and two sidecars in `exactly_once`, {where}; {run.rate} records a second, due up to 8 s later. "
        f"{run.minutes:.0f} minutes, seed {run.seed}: {len(run.rows)} rounds, {run.verdict}. Again: `make nemesis`, or "
        f"the same rounds with `.venv/bin/python -m tests.nemesis --seed {run.seed}`.\n\n"
        "Kafka has failed over when a client that knows nothing of before has written to a partition on each broker, "
        "in a transaction with a group's offsets that was committed; where brokers are restarted in order, it is the "
        "longest time in which no such client came to its end. From then on, or from when links are whole, times "
        "run until a record has arrived from each of the source's partitions. Lateness is what a reader of committed "
        "records sees, its own reconnecting included: when it has a record, less when that was due, or accepted by "
        "Kafka if that was later. *In the log* is the lateness of the append: a reader waits for the end of what was "
        "open before it, too. A broker's session is 6 s.\n\n"
    )
    remark = f"{record['remark']}\n\n" if "remark" in record else ""
    return f"{words}{remark}{goals_table(goals(run.rows))}\n\n{rounds_table(run.rows)}\n"


def _mutants() -> str:
    record = _load("mutants.json")
    if not record:
        return "Not recorded yet.\n"
    results = record["results"]
    found = sum(result["found"] for result in results)
    by_seed = [result["seed"] for result in results if result["found"]]
    seeds = Counter("1" if seed == 1 else "2 to 10" if seed <= 10 else "more" for seed in by_seed)
    head = (
        "Mistakes put on purpose into the engine, the overflow and what operators start, one at a time: the "
        f"simulations found {found} of {len(results)} "
        f"({seeds['1']} with the first seed, {seeds['2 to 10']} with seeds 2 to 10). Again: `make mutants`.\n"
    )
    lines = [
        head,
        "| mistake | found by seed |", "|---|---|",
        *(f"| {result['name']} | {_found_by(result)} |" for result in results),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _found_by(result: Mapping[str, Any]) -> str:
    if not result["found"]:
        return "not found"
    return f"`{result['test']}`" if result.get("test") else str(result["seed"])


def _holes() -> str:
    """Of each hole what its mend keeps from happening, and who notices when that is taken out."""
    results = {result["name"]: result for result in _load("mutants.json").get("results", [])}
    head = (
        "A hostile review of what operators start found these. Each mend is taken out again as a mutant: a seed of the "
        "simulation of operations finds that, or, of what lies beside it (one answer, one row, one date), a test.\n"
    )
    lines = [
        head,
        "| hole | its mends | taken out: found by seed, or test |", "|---|---|---|",
    ]  # fmt: skip
    for one in yaml.safe_load((RECORDS / "holes.yaml").read_text()):
        files = ", ".join(sorted({f"`{MUTANTS[name].path}`" for name in one["mutants"]}))
        found = "; ".join(
            f"{name}: {_found_by(results[name]) if name in results else 'not tried yet'}" for name in one["mutants"]
        )
        lines.append(f"| {one['hole']} | {files} | {found} |")
    return "\n".join(lines) + "\n"


def _found() -> str:
    items = yaml.safe_load((RECORDS / "found.yaml").read_text())
    lines = ["| what | found by | now |", "|---|---|---|"]
    lines += [f"| {item['what']} | {item['by']} | {item['now']} |" for item in items]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Record if asked to, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--junit", type=Path, help="results of `pytest --junitxml=... -o junit_logging=system-out`")
    given = parser.parse_args()
    if given.junit is not None:
        record_junit(given.junit)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
