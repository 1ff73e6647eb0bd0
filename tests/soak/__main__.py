"""`python -m tests.soak [--minutes 30] [--seed n] [--guarantee ...] [--only "fault"]`: exit 1 on any violation.

Rounds of a few faults each, a fresh site every round, so that what is found has a small history. The last third of the
time is spent on three brokers, of which one at a time goes. The seed decides which faults are done to whom; when they
meet the processes is up to the machine.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.faults.catalogue import promised
from tests.faults.failpoints import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.faults.scene import Scene, Servers
from tests.integration.conftest import GUARANTEES
from tests.source import ROOT

FAULTS_PER_ROUND: Final = 5
RATE: Final = 300
PROCESSES: Final = 3
RECORDED: Final = ROOT / "docs" / "reliability"


@dataclass(frozen=True, slots=True)
class Row:
    """One round and what the oracle says about it."""

    seed: int
    guarantee: str
    faults: tuple[str, ...]
    sent: int
    lost: int
    early: int
    changed: int
    repeated: int
    imbalance: int
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def violated(self) -> bool:
        """True when something happened that this guarantee rules out."""
        repeated = self.repeated if self.guarantee == EXACTLY_ONCE else 0
        return bool(self.error or self.lost or self.early or self.changed or self.imbalance or repeated)


def play(servers: Servers, guarantee: str, seed: int, only: str) -> Row:
    """One round."""
    chance = random.Random(seed)
    choice = promised(guarantee, len(servers.nodes) or 1)
    names = tuple([only] * FAULTS_PER_ROUND if only else chance.sample(sorted(choice), FAULTS_PER_ROUND))
    done: list[str] = []
    try:
        scene = Scene(servers, guarantee, seed, RATE, PROCESSES, governed=True)
        with scene.running():
            for name in names:
                done.append(name)
                say(f"  {name}")
                choice[name].do(scene)
                scene.wait_until_flowing()
            verdict, imbalance = scene.verdict()
    except Exception as error:  # noqa: BLE001 - whatever it was, the table shows it and the run goes on
        traceback.print_exc()
        return Row(seed, guarantee, tuple(done), 0, 0, 0, 0, 0, 0, f"{type(error).__name__}: {error}"[:2_000])
    return Row(
        seed, guarantee, names, verdict.sent, verdict.lost, verdict.early, verdict.changed, verdict.repeated, imbalance,
        notes=verdict.faults,
    )  # fmt: skip


def play_rounds(rows: list[Row], given: argparse.Namespace, brokers: int, seconds: float) -> None:
    """Rounds on servers of their own until the time is up; each adds a row."""
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="tickover-soak-") as directory:
        servers = Servers(Path(directory), brokers)
        try:
            servers.start()
            while time.monotonic() < until_s:
                number = len(rows)
                guarantee = given.guarantee or GUARANTEES[-1 - number % len(GUARANTEES)]
                say(f"round {number + 1}, {guarantee}, seed {given.seed + number}, brokers {brokers}")
                rows.append(play(servers, guarantee, given.seed + number, given.only))
                say(f"  {'VIOLATED' if rows[-1].violated else 'ok'}: {rows[-1]}")
        finally:
            servers.stop()


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S "), text, flush=True)


def table(rows: list[Row]) -> str:
    """The oracle's table, one line for each guarantee, and how often each fault was done."""
    lines = ["| guarantee | rounds | sent | lost | early | changed | repeated | imbalance | errors |", "|---" * 9 + "|"]
    for guarantee in (AT_LEAST_ONCE, EXACTLY_ONCE):
        mine = [row for row in rows if row.guarantee == guarantee]
        if mine:
            sums = [sum(getattr(row, name) for row in mine) for name in Row.__annotations__ if name in COUNTED]
            errors = sum(bool(row.error) for row in mine)
            lines.append(f"| {guarantee} | {len(mine)} | {' | '.join(f'{each:,}' for each in sums)} | {errors} |")
    done = Counter(name for row in rows for name in row.faults)
    lines += ["", "Faults: " + ", ".join(f"{name} {count}" for name, count in sorted(done.items()))]
    return "\n".join(lines)


COUNTED: Final = ("sent", "lost", "early", "changed", "repeated", "imbalance")


def main() -> int:
    """Play until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--guarantee", choices=GUARANTEES, help="one of them; else in turn")
    parser.add_argument("--brokers", type=int, choices=(1, 3), help="so many all the time")
    parser.add_argument("--only", default="", help="one fault, again and again")
    parser.add_argument("--record", action="store_true", help=f"write the rows to {RECORDED.relative_to(ROOT)}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the children are ended too
    say(f"seed {given.seed}: python -m tests.soak --seed {given.seed} repeats these rounds")
    rows: list[Row] = []
    alone = given.brokers == 1 or (not given.brokers and 2 / 3)
    for brokers, share in ((1, alone), (3, 1 - alone)):
        if share:
            play_rounds(rows, given, brokers, share * given.minutes * 60)
    print(f"\n{table(rows)}")
    if given.record:
        RECORDED.mkdir(exist_ok=True)
        document = {"seed": given.seed, "minutes": given.minutes, "rows": [asdict(row) for row in rows]}
        (RECORDED / "soak.json").write_text(json.dumps(document, indent=1) + "\n")
    return int(any(row.violated for row in rows) or not rows)


if __name__ == "__main__":
    sys.exit(main())
