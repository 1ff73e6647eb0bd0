"""`python -m tests.services.late_imports run`: the sidecar, which notes what is imported and compiled, and when.

In the file TICKOVER_TEST_IMPORTS, one line each: epoch seconds, what happens (`import` or `compile`), of what, and in
which thread, and by whom.
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final, NamedTuple

VARIABLE: Final = "TICKOVER_TEST_IMPORTS"
NOTED: Final = ("import", "compile")
NAME_MAX: Final = 200
CALLERS: Final = 40


class Late(NamedTuple):
    """One import, or one text that was compiled."""

    at_s: float
    what: str
    name: str
    thread: str
    by: str


def read_late(path: Path, since_s: float) -> list[Late]:
    """All that was imported and compiled at `since_s` (epoch seconds) or later."""
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    found = [Late(float(at_s), *rest) for at_s, *rest in lines]
    return [one for one in found if one.at_s >= since_s]


def main() -> None:
    """The product's command, with its imports noted from outside."""
    from sidecar.__main__ import main as command

    notes = os.open(os.environ.pop(VARIABLE), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NOTED:
            name = str(arguments[0 if event == "import" else 1])[:NAME_MAX].replace("\n", " ").replace("\t", " ")
            thread = threading.current_thread().name
            by = " < ".join(f"{one.filename}:{one.lineno}" for one in reversed(traceback.extract_stack(limit=CALLERS)))
            os.write(notes, f"{time.time()}\t{event}\t{name}\t{thread}\t{by}\n".encode(errors="replace"))

    sys.addaudithook(note)
    command()


if __name__ == "__main__":
    main()
