"""`tickover demo --report DIRECTORY`: what happened, as the jobs of the pipeline tell it, while Kafka is still there.

    ingest -> reconcile -> report, each in a process of its own, as `tickover pipeline` runs them

Below the directory comes one of the run's name: the pages, the tables, and what the jobs have said (`jobs.log`).
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

JOBS_LOG: Final = "jobs.log"
WORDS_MAX: Final = 500
Say = Callable[[str], None]


class JobFailed(Exception):
    """A job ended with another status than 0; the text has its last words."""


def write_report(directory: Path, bootstrap: str, group: str, topics: Sequence[str], say: Say) -> bool:
    """Take ledger and topics into tables, prove that nothing is missing, write the pages; False if that failed."""
    place = directory / group
    place.mkdir(parents=True, exist_ok=True)
    say("taking what happened into tables, by three jobs on Spark: a minute or two")
    warehouse = ("--warehouse", str(place / "tables"))
    sources = [word for topic in topics for word in ("--topic", topic)]
    try:
        taken = _run(place, "ingest", *warehouse, "--bootstrap-servers", bootstrap, "--group", group, *sources)
        say(f"ingest: {_counts(taken['settled'])} in {place / 'tables'}")
        judged = _run(place, "reconcile", *warehouse)
        say(f"reconcile: {_counts(judged['records'])}; no faults")
        for name, page in _run(place, "report", *warehouse, "--out", str(place)).items():
            say(f"{name}: {page['page']}")
    except JobFailed as error:
        say(f"{error}; all of its words: {place / JOBS_LOG}")
        return False
    return True


def _run(place: Path, job: str, *options: str) -> dict[str, Any]:
    """Run a job and read what it says in JSON. Raises JobFailed."""
    with (place / JOBS_LOG).open("a", encoding="utf-8") as words:
        command = [sys.executable, "-m", "sidecar", "pipeline", job, *options]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=words, text=True, check=False)
    if ended.returncode:
        last = (place / JOBS_LOG).read_text(encoding="utf-8").strip().rpartition("\n")[2]
        raise JobFailed(f"{job} ended with status {ended.returncode}: {last[:WORDS_MAX]}")
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def _counts(by_name: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(by_name.items())) or "nothing"
