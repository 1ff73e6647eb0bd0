"""Operators' work on many messages at once, as a part of the load: redrives, changes by filter, a schedule.

Each part asks over REST on a thread of its own, and goes on when the process that it has asked is gone. Judged from
the topics when no sidecar runs any more.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tests.services.governed_changes import GovernedChanges
from tests.services.governed_redrives import GovernedRedrives
from tests.services.governed_schedule import GovernedSchedule
from tests.services.kafka import ANSWER_TIMEOUT_S
from tests.services.oracle import Verdict
from tests.services.patient_operator import Findings, Operator, Part, SceneOver
from tests.services.sidecar_process import ANSWER_S, Sidecar
from tests.services.site import Site
from tests.services.waiting import wait_until

STALLED_S: Final = 120.0  # without getting on
ENDLESS_S: Final = 3_600.0
FAULTS_SHOWN: Final = 20


class GovernedTraffic:
    """From `start` to `finish`, or to `close`."""

    def __init__(self, site: Site, sidecars: Sequence[Sidecar], seed: int = 1) -> None:
        self._operator = Operator(site, sidecars, seed)
        self._parts: list[Part] = [
            GovernedRedrives(self._operator, seed), GovernedChanges(self._operator), GovernedSchedule(self._operator),
        ]  # fmt: skip
        self._threads = [threading.Thread(target=self._work, args=(part,), daemon=True) for part in self._parts]
        self._failures: list[BaseException] = []

    @staticmethod
    def prepare(site: Site) -> str:
        """Make the topics; returns the policies to be added to the others."""
        return GovernedRedrives.prepare(site) + GovernedChanges.prepare(site) + GovernedSchedule.prepare(site)

    def start(self) -> None:
        """Begin to govern."""
        for thread in self._threads:
            thread.start()

    def _work(self, part: Part) -> None:
        try:
            part.work()
        except SceneOver:
            pass  # nobody waits for it any more
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            self._failures.append(error)

    @property
    def word(self) -> str:
        """Where all parts stand."""
        return "; ".join(part.word for part in self._parts)

    def wait_until_busy(self) -> None:
        """Until every part is in the middle of something that a fault may meet."""
        self._wait(lambda: all(part.busy for part in self._parts))

    # --- the end --------------------------------------------------------------------------------------------------

    def quieten(self) -> None:
        """Begin nothing new; what has begun comes to its end by `finish`."""
        self._operator.quiet.set()

    def finish(self) -> None:
        """Wait for the end of all that has begun, as long as it gets on."""
        self.quieten()
        self._wait(lambda: not any(thread.is_alive() for thread in self._threads))

    def _wait(self, true: Callable[[], bool]) -> None:
        """Until it is so; AssertionError when a part has failed, or nothing gets on."""
        word, since_s = "", time.monotonic()

        def over() -> bool:
            nonlocal word, since_s
            if self.word != word:
                word, since_s = self.word, time.monotonic()
            return bool(self._failures) or true() or time.monotonic() - since_s > STALLED_S

        wait_until(over, ENDLESS_S)
        if self._failures:
            raise self._failures[0]
        assert true(), f"nothing gets on: {word}"

    def close(self) -> None:
        """End all parts, wherever they stand. Twice is harmless."""
        self._operator.over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(ANSWER_S + ANSWER_TIMEOUT_S)

    def added_to(self, verdict: Verdict) -> Verdict:
        """The verdict of all traffic, with what is wrong here."""
        findings = Findings()
        for part in self._parts:
            part.judge(findings)
        counts = findings.counts
        return replace(
            verdict,
            sent=verdict.sent + findings.sent,
            arrived=verdict.arrived + findings.arrived,
            lost=verdict.lost + counts["lost"],
            early=verdict.early + counts["early"],
            changed=verdict.changed + counts["changed"],
            repeated=verdict.repeated + counts["repeated"],
            faults=(*verdict.faults, *findings.faults[:FAULTS_SHOWN]),
        )
