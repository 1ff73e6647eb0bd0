"""`tickover broker` on a disk that forgets: `python -m tests.services.forgetful_broker JOURNAL --port N --data DIR`.

What is flushed is written down in JOURNAL, a path and a size a line; `forget` cuts each log back to that, as a loss of
power would that comes with the process's end.
"""

import os
import sys
from pathlib import Path

from sidecar.__main__ import main


def forget(journal: Path, data: Path) -> int:
    """Cut all logs to what was flushed of them; how many bytes that were."""
    flushed = dict(line.rsplit(" ", 1) for line in journal.read_text().splitlines()) if journal.exists() else {}
    lost = 0
    for log in data.rglob("*.log"):
        size = min(int(flushed.get(str(log), 0)), log.stat().st_size)
        lost += log.stat().st_size - size
        os.truncate(log, size)
    return lost


def write_down(journal: Path) -> None:
    """From now on."""
    flush = os.fdatasync
    lines = journal.open("a", buffering=1)

    def flush_and_say(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        flush(descriptor)
        print(Path(f"/proc/self/fd/{descriptor}").readlink(), size, file=lines)

    os.fdatasync = flush_and_say  # type: ignore[assignment]


if __name__ == "__main__":
    write_down(Path(sys.argv[1]))
    sys.argv[1:] = ["broker", *sys.argv[2:]]
    main()
