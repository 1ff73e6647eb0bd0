"""`python -m benchmarks.timed_turns run`: the sidecar, with every long turn of its engine noted.

In the file TICKOVER_TEST_TURNS, one line each: when it began (epoch seconds), how long it took by the wall, and how
much of that was its own work.
"""

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "TICKOVER_TEST_TURNS"
LONG_S: Final = 0.005


class Turn(NamedTuple):
    """One long turn, in seconds."""

    began: float
    took: float
    worked: float


def long_turns(path: Path, since_s: float) -> list[Turn]:
    """Turns that began at `since_s` (epoch seconds) or later; none without the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    turns = [Turn(*map(float, line.split())) for line in lines]
    return [turn for turn in turns if turn.began >= since_s]


def main() -> None:
    """The product's command, with its engine's turns timed from outside."""
    from sidecar.__main__ import main as command
    from sidecar.engine.engine import Engine

    turn = Engine.turn
    with Path(os.environ.pop(VARIABLE)).open("a", buffering=1) as notes:

        def timed(self: Engine, now_ms: int) -> int:
            began, started_s, worked_s = time.time(), time.perf_counter(), time.thread_time()
            done = turn(self, now_ms)
            took_s = time.perf_counter() - started_s
            if took_s >= LONG_S:
                notes.write(f"{began} {took_s} {time.thread_time() - worked_s}\n")
            return done

        Engine.turn = timed  # type: ignore[method-assign]
        command()


if __name__ == "__main__":
    main()
