"""Dead letters that are redriven, wave by wave, and the judge who knows that each comes back once, with its lineage.

A wave's letters have an error class of their own. Its redrive is planned when all of them lie in the dead-letter topic,
and is slow enough for a fault to meet it.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from tests.services.kafka import Headers, Sent
from tests.services.patient_operator import Findings, Operator
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, headers_of, place

POLICY: Final = """
---
name: spent
match: {topics: ["~spent-retry"]}
retry: {attempts: 1, backoff: {kind: fixed, delay: 200ms}}
target: {topic: ~spent}
dead_letter: {topic: ~spent-dlq}
"""
PARTITIONS: Final = 2
LETTERS: Final = 150  # in a wave
RATE: Final = 30  # redriven in a second
HAPPENS_TWICE: Final = frozenset({"/problems/redrive-active", "/problems/redrive-ended"})  # its answer was lost


class _Letter(NamedTuple):
    wave: int
    key: bytes | None
    value: bytes
    own: Headers
    dead: Headers  # those of the dead letter


class GovernedRedrives:
    """A part of `GovernedTraffic`."""

    def __init__(self, operator: Operator, seed: int) -> None:
        self.word = "redrives: not begun"
        self.busy = False
        self._operator = operator
        self._random = random.Random(seed)
        self._letters: list[_Letter] = []
        self._plans: list[str] = []

    @staticmethod
    def prepare(site: Site) -> str:
        """Make the topics; returns the policy to be added to the others."""
        site.topic("spent-retry", PARTITIONS)
        site.topic("spent-dlq", PARTITIONS)
        site.target("spent", PARTITIONS)
        return POLICY

    def work(self) -> None:
        """Wave after wave; the one that has begun is brought to its end."""
        while not (self._plans and self._operator.quiet.is_set()):
            wave = len(self._plans)
            self._send(wave)
            wanted = {number for number, letter in enumerate(self._letters) if letter.wave == wave}
            self._operator.until(lambda wanted=wanted: wanted <= self._lying().keys())  # type: ignore[misc]
            self._redrive(wave)

    def _send(self, wave: int) -> None:
        sent_ms, first = now_ms(), len(self._letters)
        error: Headers = [("tickover-error-class", b"Wave%d" % wave), ("tickover-error-message", b"no more")]
        records: list[Sent] = []
        for number in range(first, first + LETTERS):
            own: Headers = [("n", b"%d" % number), ("twice", None), ("twice", b"\xff")]
            value = b"%d " % number + self._random.randbytes(self._random.randrange(100))
            headers = [*own, ("tickover-attempt", b"2"), *error]
            records.append(Sent(b"key %d" % number, value, headers, sent_ms, number % PARTITIONS))
        for record, report in zip(records, self._operator.send("spent-retry", records), strict=True):
            own = record.headers[:3]
            dead: Headers = [
                *own,
                ("tickover-origin", place(report)),
                ("tickover-due", b"%d" % sent_ms),
                ("tickover-policy", b"spent@1"),
                ("tickover-attempt", b"2"),
                ("tickover-first-failure", b"%d" % sent_ms),
                *error,
                ("tickover-reason", b"attempts_exhausted"),
                ("tickover-source", place(report)),
            ]
            self._letters.append(_Letter(wave, record.key, record.value or b"", own, dead))
        self.word = f"redrives: wave {wave} is sent"

    def _lying(self) -> dict[int, list[Message]]:
        return _by_number(self._operator.committed("spent-dlq"))

    def _redrive(self, wave: int) -> None:
        """Plan, run, see to its end."""
        operator = self._operator
        topic = operator.site.name("spent-dlq")
        body = {"topic": topic, "filter": {"error_class": f"Wave{wave}"}, "rate": RATE, "ramp": 0, "watch": 0}
        path = "/v1/redrives"
        id = operator.ask("POST", path, 202, json=body).json()["id"]
        self._plans.append(id)
        path = f"{path}/{id}"
        while (document := self._look(path))["state"] != "done":
            assert document["state"] in ("planning", "planned", "running"), f"it ended by itself: {document}"
            if document["state"] == "planned":
                answer = operator.ask("POST", f"{path}/run", 202, 409)
                assert answer.status_code == 202 or answer.json()["type"] in HAPPENS_TWICE, answer.text
            operator.pause()

    def _look(self, path: str) -> dict[str, Any]:
        document: dict[str, Any] = self._operator.ask("GET", path, 200).json()
        self.busy = document["state"] == "running" and document["sent"] > 0
        self.word = f"redrives: wave {len(self._plans) - 1} {document['state']}, {document['sent']} sent"
        return document

    # --- the end --------------------------------------------------------------------------------------------------

    def judge(self, findings: Findings) -> None:
        """Each letter died as it should, and came back once, whatever was redriven when."""
        lying, back = self._lying(), _by_number(self._operator.committed("spent"))
        for number, letter in enumerate(self._letters):
            self._judge(number, letter, lying[number], back[number], findings)
        sources = Counter(
            dict(headers_of(message))["tickover-redrive-source"] for some in back.values() for message in some
        )
        twice = [source for source, count in sources.items() if count > 1]
        findings.note("changed", f"letters that were redriven twice: {twice[:3]}", len(twice))
        findings.sent += len(self._letters)
        findings.arrived += sum(map(len, back.values()))

    def _judge(
        self, number: int, letter: _Letter, lying: list[Message], back: list[Message], findings: Findings
    ) -> None:
        findings.note("lost", f"letter {number} didn't die", not lying)
        findings.note("repeated", f"letter {number} died {len(lying)} times", max(len(lying) - 1, 0))
        for message in lying:
            found = (message.key(), message.value(), headers_of(message))
            findings.note("changed", f"letter {number} is {found}", found != (letter.key, letter.value, letter.dead))
        findings.note("lost", f"letter {number} of wave {letter.wave} didn't come back", not back)
        findings.note("repeated", f"letter {number} came back {len(back)} times", max(len(back) - 1, 0))
        for message in back:
            source = dict(headers_of(message)).get("tickover-redrive-source")
            wanted = [
                *letter.own,
                letter.dead[len(letter.own)],  # its origin
                ("tickover-redrive-plan", f"{self._plans[letter.wave]}/1".encode()),
                ("tickover-redrive-count", b"1"),
                ("tickover-redrive-source", source if source in [place(one) for one in lying] else b"?"),
            ]
            found = (message.key(), message.value(), headers_of(message))
            findings.note(
                "changed", f"letter {number} came back as {found}", found != (letter.key, letter.value, wanted)
            )


def _by_number(messages: Iterable[Message]) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = defaultdict(list)
    for message in messages:
        found[int(dict(headers_of(message))["n"] or b"-1")].append(message)
    return found
