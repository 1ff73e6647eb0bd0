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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.source import ROOT

SEEDS: Final = 48
TIMEOUT_S: Final = 600.0
COPIED: Final = ("sidecar", "policies", "api", "purgatory", "broker", "tests", "pyproject.toml")
RECORDED: Final = ROOT / "docs" / "reliability" / "mutants.json"


@dataclass(frozen=True, slots=True)
class Mutant:
    """In a file of `sidecar/`, `old` (there once) becomes `new`. `tests`: pytest's -k, when only some could find it."""

    file: str
    old: str
    new: str
    tests: str = ""


TRANSACTIONS: Final = "transactions"
ORDER: Final = TRANSACTIONS  # without them a record that was refused may come late

MUTANTS: Final[dict[str, Mutant]] = {
    "the wheel rounds down": Mutant("wheel.py", "tick = -(-held[0] // tick_ms)", "tick = held[0] // tick_ms"),
    "what the client only infers is a fact": Mutant(
        "generation.py",
        "        if error is not None or message.offset() is None:\n"
        "            self.failures.append(Failure(refusal(error, message), message, alone=False))",
        "        if error is not None:\n"
        "            self.failures.append(Failure(refusal(error, message), message, alone=False))",
    ),
    "the wheel fires a tick early": Mutant(
        "wheel.py", "reached = now_ms // self.tick_ms", "reached = -(-now_ms // self.tick_ms)"
    ),
    "W is C, whatever is unsettled": Mutant(
        "lane.py", "reached = self.windows[0].start if self.windows else self.cursor", "reached = self.cursor"
    ),
    "an overtaken record is promoted too": Mutant(
        "withdrawal.py",
        "            lane.skip.update((held.offset, held.position) for held in late)\n",
        "",
    ),
    "promotion passes nothing over": Mutant(
        "lane.py", "if held.offset not in skip] if skip else list(records)", "] if skip else list(records)"
    ),
    "an overtaken record is done when Redis has it": Mutant(
        "lane.py",
        "if offset not in skip and index >= 0 and not done[index]:",
        "if index >= 0 and not done[index]:",
    ),
    "a parked record keeps its own due time": Mutant(
        "ordering.py", "if tail.due_ms > held.due_ms:", "if False:", ORDER
    ),
    "one that is read again passes one that is still in Redis": Mutant(
        "ordering.py",
        "        return tail if tail.ahead_of(lane.cursor) else None",
        "        return None",
        ORDER,
    ),
    "a record in order overtakes what Redis has": Mutant(
        "withdrawal.py", "stay = lane.order.on_the_way if lane.order is not None else ()", "stay = ()", ORDER
    ),
    "what Redis has of a key is not looked for": Mutant(
        "ordering.py", "            order.sought |= fresh", "            pass", ORDER
    ),
    "one that waits for its target is passed": Mutant("ordering.py", "if key in order.unplaced or", "if", ORDER),
    "one that isn't read again yet is passed": Mutant(
        "in_order.py", "if order.must_wait(key, held.offset, lane.next, lane.cursor):", "if False:", ORDER
    ),
    "what comes back loses its place": Mutant(
        "in_order.py", "if lane.order is None or isinstance(parcel, Departure):", "if True:", ORDER
    ),
    "a quota forgets what is redone": Mutant(
        "deciding.py", "        lane.quota.add(held)\n    return None", "        pass\n    return None"
    ),
    "what is moved counts twice": Mutant(
        "quota.py", "            self._counted.add(carried.offset)", "            pass"
    ),
    "what is promoted isn't counted": Mutant(
        "lane.py", "                self.quota.found(fresh)", "                pass"
    ),
    "the cursor passes what is only on its way": Mutant(
        "lane.py",
        "        for change in self.changes:\n            earliest = min(earliest, change.earliest)\n",
        "",
    ),
    "Redis before the ledger": Mutant(
        "change.py", "return self.committed and not self.missing", "return not self.missing"
    ),
    "done before Redis has acknowledged": Mutant(
        "sealing.py",
        "        lane.changes.append(seal.change)\n",
        "        lane.changes.append(seal.change)\n"
        "        for offset in seal.change.records:\n            lane.done[offset - lane.base] = 1\n"
        "        lane.overflow_held += len(seal.change.records)\n",
    ),
    "the recovery pointer forgets L": Mutant("lane.py", "mark.offset_max >= low", "mark.offset_max > low + 5"),
    "the recovery pointer forgets change blocks": Mutant("lane.py", "or mark.number > acknowledged ", ""),
    "the recovery pointer is one too far": Mutant(
        "lane.py", "                return mark.ledger_offset\n", "                return mark.ledger_offset + 1\n"
    ),
    "recovery redoes nothing": Mutant("recovery.py", "        self._redo(lane)\n", ""),
    "recovery forgets what is settled ahead of W": Mutant(
        "recovery.py",
        "{offset: place for offset, place in self._settled_ahead.items() if place > self.watermark}",
        "{}",
    ),
    "what has an entry is decided again": Mutant(
        "deciding.py", "if (entry := lane.entries.pop(offset, None)) is not None:", "if False:"
    ),
    "what was read is decided by the table of now": Mutant(
        "deciding.py",
        "return table if version in (NOT_DECIDED, table.version) else self._table_at(version)",
        "return table",
    ),
    "settled before all is acknowledged": Mutant(
        "generation.py", "return self.acknowledged == self.sent", "return True"
    ),
    "the commit is one ahead": Mutant(
        "settlement.py", "offsets[lane.id] = (lane.advance_low(), ", "offsets[lane.id] = (lane.advance_low() + 1, "
    ),
    "what was revoked isn't drained": Mutant("assignment.py", "settled = self._drain(leaving)", "settled = True"),
    "what was lost is written on": Mutant("assignment.py", "            lane.dropped = True\n", "            pass\n"),
    "an expired record is emitted": Mutant("emission.py", "if 0 <= parcel.expires_ms < now_ms:", "if False:"),
    "a full producer drops a record": Mutant(
        "emission.py",
        "        batch.start += len(taken)\n",
        "        batch.start += len(taken) + (len(taken) < len(batch.records) - batch.start)\n",
    ),
    "a transaction goes without its offsets": Mutant(
        "finishing.py", "        if transaction.states:\n", "        if False:\n", TRANSACTIONS
    ),
    "a transaction is committed before all is acknowledged": Mutant(
        "finishing.py",
        "return not generation.failures and not any(block.error for block in transaction.blocks)",
        "return True",
        TRANSACTIONS,
    ),
    "an unknown end is taken for a commit": Mutant(
        "finishing.py", "            return Broken(cause.str())\n", "            return Committed()\n", TRANSACTIONS
    ),
    "an unknown end is taken for an abort": Mutant(
        "finishing.py",
        "            return Broken(cause.str())\n",
        "            return Aborted(cause, of_records)\n",
        TRANSACTIONS,
    ),
    "a lost partition's transaction is committed": Mutant(
        "filling.py",
        "            transaction.doomed = True\n            return\n",
        "            pass\n",
        TRANSACTIONS,
    ),
    "a block is written ahead of one that may have to be written again": Mutant(
        "exactly_once.py", "        if self._ending is not None:\n            return False\n", "", TRANSACTIONS
    ),
    "an aborted block is forgotten": Mutant(
        "filling.py", "            restore_sealed(block.lane, block.seal)\n", "            pass\n", TRANSACTIONS
    ),
    "aborted records are forgotten": Mutant(
        "exactly_once.py",
        "        self._refusals.take_back(generation, transaction.careful)\n",
        "        pass\n",
        TRANSACTIONS,
    ),
    "a refused record is forgotten": Mutant("settlement.py", "if generation.failures:", "if False:"),
    "a cancelled record of the wheel fires": Mutant(
        "actions.py", "            self._emitter.withdraw(lane, held)\n", "            pass\n"
    ),
    "a struck record is promoted": Mutant(
        "withdrawal.py", "        lane.skip[held.offset] = held.position\n        lane.struck", "        lane.struck"
    ),
    "a record that is about to go to the overflow goes there although it has left": Mutant(
        "withdrawal.py", "    lane.puts = kept\n", ""
    ),
    "what the overflow finds is believed": Mutant(
        "actions.py",
        "if held is not None and (held.position <= lane.cursor or held.offset in lane.skip):",
        "if False:",
    ),
    "an action acts on what came after it": Mutant(
        "actions.py", "isinstance(one, Held) and one.offset < item.offset]", "isinstance(one, Held)]"
    ),
    "another key replaces too": Mutant(
        "actions.py", "if found is not None and found.key == item.key:", "if found is not None:"
    ),
    "who has an id doesn't wait for its turn": Mutant(
        "actions.py",
        "            if queue is None:\n                waiting",
        "            if True:\n                waiting",
    ),
    "recovery forgets what is carried": Mutant(
        "recovery.py", "                lane.entries.setdefault(held.offset, held)\n", "                pass\n"
    ),
    "recovery forgets what is struck": Mutant("recovery.py", "                    struck=struck,\n", ""),
    "a rebuild forgets what is struck": Mutant(
        "rebuild.py", "struck_out(block.settled) if block.number > self._hw else []", "[]"
    ),
    "an aborted cancellation is forgotten": Mutant(
        "sealing.py",
        "    lane.departed[:0] = seal.silent  # the others are produced again\n",
        "",
        TRANSACTIONS,
    ),
    "a moved record takes its payload from its control record": Mutant(
        "codec.py", 'size + len(key or b"") + len(value or b""), source,', "size, -1,"
    ),
    "struck records are counted as promoted": Mutant(
        "lane.py", "                elif offset in struck:\n                    self.overflow_held -= 1\n", ""
    ),
}
FAST: Final = (
    "W is C, whatever is unsettled",
    "done before Redis has acknowledged",
    "recovery redoes nothing",
    "aborted records are forgotten",
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant. `seed` is the first that found it, 0: none did."""

    name: str
    found: bool
    seed: int
    seconds: float
    why: str


class Bench:
    """A copy of the sources in which one mutant lives at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
        path = self._directory / "sidecar" / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return Result(name, False, 0, 0.0, f"its text is {text.count(mutant.old)} times in {mutant.file}")
        path.write_text(text.replace(mutant.old, mutant.new))
        started_s = time.monotonic()
        try:
            done = self._simulate(seeds, mutant.tests)
        finally:
            path.write_text(text)
        seed = re.search(r"FAILED .*\[(\d+)\]", done.stdout)
        why = re.search(r"^E +(.*)", done.stdout, re.MULTILINE)
        return Result(
            name,
            done.returncode == 1,
            int(seed[1]) if seed else 0,
            round(time.monotonic() - started_s, 1),
            why[1][:160] if why else "",
        )

    def _simulate(self, seeds: int, tests: str = "") -> subprocess.CompletedProcess[str]:
        # Without assertions of the engine's own the world's and the oracle's would still be there: both count.
        command = [sys.executable, "-m", "pytest", "tests/simulation/test_simulation.py", "-x", "-q", "--no-header"]
        if tests:
            command += ["-k", tests]
        return subprocess.run(
            [*command, "-p", "no:cacheprovider", "--tb=short", "--show-capture=no"],
            cwd=self._directory,
            env={**os.environ, "TICKOVER_TEST_SIM_SEEDS": str(seeds), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )


def main() -> int:
    """Try them all; status 1 when one lives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", default="", help="those with this text in their name")
    parser.add_argument("--record", action="store_true", help=f"write the results to {RECORDED.relative_to(ROOT)}")
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="tickover-mutants-") as directory:
        bench = Bench(Path(directory))
        for name in MUTANTS:
            if given.only in name:
                results.append(bench.try_out(name, given.seeds))
                print("found   " if results[-1].found else "SURVIVED", results[-1], flush=True)
    found = sum(result.found for result in results)
    print(f"{found} of {len(results)} mutants found, {given.seeds} seeds at most")
    if given.record:
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(
            json.dumps({"seeds": given.seeds, "results": [asdict(result) for result in results]}, indent=1) + "\n"
        )
    return int(found < len(results) or not results)


if __name__ == "__main__":
    sys.exit(main())
