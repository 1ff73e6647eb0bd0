"""A schedule that fires every second while all fails around it, and the judge who counts its occurrences."""

from collections import defaultdict
from typing import Final

from confluent_kafka import Message

from tests.services.patient_operator import Findings, Operator
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, due_of, headers_of

POLICY: Final = """
---
name: ticking
match: {topics: ["~ticking"]}
delay: {max: 2h}
target: {topic: ~ticks}
"""
PARTITIONS: Final = 2
EVERY_MS: Final = 1_000
AHEAD_MS: Final = 11_000  # so long after it was deleted it may still fire: what was written ahead
NAME: Final = "tick"
PATH: Final = f"/v1/schedules/{NAME}"


class GovernedSchedule:
    """A part of `GovernedTraffic`."""

    def __init__(self, operator: Operator) -> None:
        self.word = "the schedule: not begun"
        self.busy = True  # from its beginning to its end
        self._operator = operator
        self._asked_ms = self._put_ms = self._until_ms = self._deleted_ms = 0

    @staticmethod
    def prepare(site: Site) -> str:
        """Make the topics; returns the policy to be added to the others."""
        site.topic("ticking", PARTITIONS)
        site.target("ticks", PARTITIONS)
        return POLICY

    def work(self) -> None:
        """From its creation to its deletion, which waits until all that was owed by then is written and has arrived."""
        operator, site = self._operator, self._operator.site
        body = {"cron": "* * * * * *", "source": site.name("ticking"), "target": site.name("ticks"), "missed": "all"}
        self._asked_ms = now_ms()
        once = {"If-None-Match": "*"}
        operator.ask("PUT", PATH, 201, 412, json={**body, "value": NAME}, headers=once)  # 412: its answer was lost
        self._put_ms = now_ms()
        self.word = "the schedule: created"
        operator.until(operator.quiet.is_set)
        self._until_ms = now_ms()
        operator.until(self._is_written)
        operator.ask("DELETE", PATH, 204, 404, headers={"If-Match": "*"})
        self._deleted_ms = now_ms()
        operator.until(lambda: not self._missing(self._arrived()))

    def _is_written(self) -> bool:
        items = self._operator.ask("GET", "/v1/schedules", 200).json()["items"]
        written_ms = next((item["written_up_to"] or 0 for item in items if item["name"] == NAME), 0)
        self.word = f"the schedule: written up to {written_ms}"
        return bool(written_ms >= self._until_ms)

    def _arrived(self) -> dict[int, list[Message]]:
        """By occurrence, as the id says."""
        found: dict[int, list[Message]] = defaultdict(list)
        for message in self._operator.committed("ticks"):
            id = dict(headers_of(message))["tickover-id"] or b""
            found[int(id.rpartition(b":")[2])].append(message)
        return found

    def _missing(self, arrived: dict[int, list[Message]]) -> list[int]:
        """Of those that must have come: the first may lie anywhere between the question and its answer."""
        first_ms = min([at_ms for at_ms in arrived if at_ms <= self._put_ms + EVERY_MS], default=_next(self._put_ms))
        owed = range(first_ms, self._until_ms + 1, EVERY_MS)
        missing = [at_ms for at_ms in owed if at_ms not in arrived]
        self.word = f"the schedule: {len(missing)} occurrences have not arrived"
        return missing

    # --- the end --------------------------------------------------------------------------------------------------

    def judge(self, findings: Findings) -> None:
        """Each second once, from its creation to its deletion."""
        arrived = self._arrived()
        missing = self._missing(arrived)
        findings.note("lost", f"occurrences {missing[:10]}", len(missing))
        for at_ms, messages in arrived.items():
            findings.note("repeated", f"occurrence {at_ms}", len(messages) - 1)
            for message in messages:
                found = (message.value(), due_of(message), at_ms % EVERY_MS)
                findings.note("changed", f"occurrence {at_ms} is {found}", found != (NAME.encode(), at_ms, 0))
                early_ms = at_ms - message.timestamp()[1]
                findings.note("early", f"occurrence {at_ms} by {early_ms} ms", early_ms > 0)
        strange = [at_ms for at_ms in arrived if not self._asked_ms < at_ms <= self._deleted_ms + AHEAD_MS]
        findings.note("changed", f"occurrences while there was no schedule: {strange[:10]}", len(strange))
        written = [dict(headers_of(message))["tickover-id"] for message in self._operator.committed("ticking")]
        findings.note("changed", "occurrences were written twice", len(written) - len(set(written)))
        findings.sent += len(written)
        findings.arrived += sum(map(len, arrived.values()))


def _next(at_ms: int) -> int:
    return (at_ms // EVERY_MS + 1) * EVERY_MS
