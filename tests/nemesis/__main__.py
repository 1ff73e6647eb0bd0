"""`python -m tests.nemesis [--minutes 30] [--seed n] [--only "leader killed"]`: status 1 when anything was violated.

Three brokers and two sidecars in `exactly_once`, each in a network namespace of its own, while records fall due. Round
by round something is done to them that the seed decides: links are cut one way or both, leaders, coordinators and the
controller are killed or frozen, brokers are restarted in order, a disk is full. Each round is timed, and nothing may be
lost, repeated or early. Namespaces need root and iproute2; without them only the rounds that cut no link are played.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.nemesis.deployment import Deployment, open_network
from tests.nemesis.network import Network, NetworkUnavailableError
from tests.nemesis.report import Run, goals, goals_table, line, rounds_table, row
from tests.nemesis.rounds import KINDS, Round, play, possible
from tests.services.oracle import Verdict
from tests.services.waiting import wait_until
from tests.source import ROOT

RATE: Final = 100
RECORDED: Final = ROOT / "docs" / "reliability" / "nemesis.json"
UNUSABLE: Final = 2  # the status where what was asked for can't be had here


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S "), text, flush=True)


def endless(kinds: Sequence[str], chance: random.Random) -> Iterator[str]:
    """All of them in an order of chance, again and again."""
    while True:
        yield from chance.sample(kinds, len(kinds))


def run(directory: Path, network: Network, given: argparse.Namespace, uncut: str) -> Run:
    """Play until the time is up, or each of `given.only` once where no time is given; then judge."""
    began_s = time.monotonic()
    chance = random.Random(given.seed)
    place = Deployment(directory, network, given.rate, given.seed)
    rounds: list[Round] = []
    with place.running():
        kinds = [name for name in given.only or KINDS if name in possible(place)]
        for name in endless(kinds, chance) if given.minutes else kinds:
            if given.minutes and time.monotonic() > began_s + given.minutes * 60:
                break
            say(f"round {len(rounds) + 1}: {name}")
            rounds.append(play(place, name, chance))
            say(line(row(rounds[-1], place.traffic.times(rounds[-1].fault_ms, rounds[-1].end_ms))))
        verdict = judge(place)
        rows = tuple(row(one, place.traffic.times(one.fault_ms, one.end_ms)) for one in rounds)
    minutes = round((time.monotonic() - began_s) / 60, 1)
    return Run(given.seed, minutes, given.rate, uncut, rows, verdict)


def judge(place: Deployment) -> Verdict:
    """Let everything arrive, stop all in order, and compare with what was sent."""
    place.wait("flowing")
    place.traffic.quieten()
    wait_until(lambda: all(sidecar.is_ready() for sidecar in place.sidecars), otherwise=place.last_words)
    for sidecar in place.sidecars:
        status = sidecar.stop()
        assert status == 0, f"a clean stop ended with {status}: {sidecar.last_words()}"
    return place.traffic.verdict()


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.nemesis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long rounds begin; 0: each kind once (30)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what decides about rounds (the time)")
    parser.add_argument("--rate", type=int, default=RATE, help=f"records a second ({RATE})")
    parser.add_argument(
        "--only", action="append", default=[], choices=sorted(KINDS), metavar="KIND",
        help="this kind of round only; may be given again. Kinds: " + ", ".join(KINDS),
    )  # fmt: skip
    parser.add_argument(
        "--network", choices=("auto", "namespaces", "none"), default="auto",
        help="namespaces: fail where there are none; auto: do without cut links then (auto)",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, help="a new directory in which all logs and data stay")
    parser.add_argument("--record", action="store_true", help=f"write the result to {RECORDED.relative_to(ROOT)}")
    return parser.parse_args(words)


def main() -> int:
    """Play, print, and record if asked to."""
    given = parse(None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is taken away again
    try:
        network, uncut = open_network(given.network)
    except NetworkUnavailableError as error:
        sys.stderr.write(f"nemesis: {error}\n")
        return UNUSABLE
    if uncut:
        say(f"no links are cut and no disk is full: {uncut}")
        if given.only and all(KINDS[name].cuts or KINDS[name].fills for name in given.only):
            sys.stderr.write(f"nemesis: nothing can be played here: {uncut}\n")
            return UNUSABLE
    say(f"seed {given.seed}: python -m tests.nemesis --seed {given.seed} draws these rounds again")
    try:
        with tempfile.TemporaryDirectory(prefix="tickover-nemesis-") as directory:
            if given.keep is not None:
                given.keep.mkdir(parents=True)
            result = run(given.keep or Path(directory), network, given, uncut)
    finally:
        network.close()
    print(f"\n{rounds_table(result.rows)}\n\n{goals_table(goals(result.rows))}\n\n{result.verdict}")
    for fault in result.verdict.faults:
        print(f"  {fault}")
    if given.record:
        RECORDED.write_text(json.dumps(result.document(), indent=1) + "\n")
    return int(result.violated)


if __name__ == "__main__":
    sys.exit(main())
