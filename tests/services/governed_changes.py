"""Groups of held messages that are cancelled or fired by a filter, and the judge who knows what may become of each.

    cancelled                   it was held when the change came to it; it never arrives
    fired                       it arrives when the change came to it, which is its due time even if it was overdue
    too late                    it had left before the change came to it, and arrives when it was due

A wave's messages have a key prefix of their own. Most are due in an hour, some while the change is under way.
"""

from collections import defaultdict
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from sidecar.model.record import Outcome
from tests.services.acted_traffic import outcomes_of
from tests.services.kafka import Headers, Sent
from tests.services.patient_operator import Findings, Operator
from tests.services.sidecar_process import now_ms
from tests.services.site import Site, due_of, headers_of, place

POLICY: Final = """
---
name: grouped
match: {topics: ["~grouped"]}
delay: {max: 2h}
target: {topic: ~grouped-out}
"""
PARTITIONS: Final = 2
FAR, NEAR = 120, 40  # messages in a wave
FAR_MS: Final = 3_600_000
SPREAD_MS: Final = 8_000  # over which the near ones are due
RATE: Final = 30  # changed in a second
ACTIONS: Final = {"cancel": "cancelled", "fire": "fired"}
HAPPENS_TWICE: Final = frozenset({"/problems/change-active", "/problems/change-ended"})  # its answer was lost


class _Message(NamedTuple):
    action: str  # what its wave is changed by
    far: bool
    due_ms: int
    key: bytes
    value: bytes
    own: Headers
    place: bytes


class GovernedChanges:
    """A part of `GovernedTraffic`."""

    def __init__(self, operator: Operator) -> None:
        self.word = "changes: not begun"
        self.busy = False
        self._operator = operator
        self._waves = 0
        self._messages: dict[str, _Message] = {}
        self._receipts: dict[str, list[str]] = defaultdict(list)  # outcomes by id

    @staticmethod
    def prepare(site: Site) -> str:
        """Make the topics; returns the policy to be added to the others."""
        site.topic("grouped", PARTITIONS)
        site.target("grouped-out", PARTITIONS)
        return POLICY

    def work(self) -> None:
        """Wave after wave, the actions in turn; at least one of each, and all messages to their end."""
        while not (self._waves >= len(ACTIONS) and self._operator.quiet.is_set()):
            action = list(ACTIONS)[self._waves % len(ACTIONS)]
            self._send(action)
            self._change(action)
            self._waves += 1
        self._operator.until(lambda: not self._open())

    def _send(self, action: str) -> None:
        sent_ms, records = now_ms(), []
        for row in range(FAR + NEAR):
            due_ms = sent_ms + (FAR_MS + row if row < FAR else (row - FAR + 1) * SPREAD_MS // NEAR)
            key = b"%d/%d" % (self._waves, row)
            headers: Headers = [("mine", key), ("tickover-id", key), ("tickover-deliver-at", b"%d" % due_ms)]
            records.append(Sent(key, b"of " + key, headers, sent_ms, row % PARTITIONS))
        for row, (record, report) in enumerate(zip(records, self._operator.send("grouped", records), strict=True)):
            due_ms = int(record.headers[2][1] or b"-1")
            told = (action, row < FAR, due_ms, record.key or b"", record.value or b"", record.headers[:1])
            self._messages[(record.key or b"").decode()] = _Message(*told, place(report))

    # --- one change -----------------------------------------------------------------------------------------------

    def _change(self, action: str) -> None:
        """Plan it when all are held, run it, see to its end, and keep its receipts."""
        filter = {"topic": self._operator.site.name("grouped"), "key_prefix": f"{self._waves}/"}
        path = self._planned({"action": action, "filter": filter, "rate": RATE})
        while (document := self._look(path))["state"] != "done":
            # "planning" again: another replica answered, which doesn't know of the plan yet.
            assert document["state"] in ("planning", "planned", "running"), f"it ended by itself: {document}"
            if document["state"] == "planned":
                answer = self._operator.ask("POST", f"{path}/run", 202, 409, json={"token": document["token"]})
                assert answer.status_code == 202 or answer.json()["type"] in HAPPENS_TWICE, answer.text
            self._operator.pause()
        cursor: str | None = ""
        while cursor is not None:
            page = self._operator.ask("GET", f"{path}/receipts?limit=100{cursor}", 200).json()
            for receipt in page["items"]:
                self._receipts[receipt["id"]].append(receipt["outcome"])
            cursor = f"&cursor={page['next']}" if page["next"] else None

    def _planned(self, body: dict[str, Any]) -> str:
        """A plan that means all that are due in an hour: the sidecar may not have read them yet."""
        while True:
            path = f"/v1/changes/{self._operator.ask('POST', '/v1/changes', 202, json=body).json()['id']}"
            while (document := self._look(path))["state"] == "planning":
                self._operator.pause()
            if document["planned"]["messages"] >= FAR:
                return path
            self._operator.ask("POST", f"{path}/abort", 202, 409)
            self._operator.pause()

    def _look(self, path: str) -> dict[str, Any]:
        document: dict[str, Any] = self._operator.ask("GET", path, 200).json()
        self.busy = document["state"] == "running" and bool(document["outcomes"])
        planned, said = document["planned"]["messages"], document["reason"] or document["outcomes"]
        self.word = f"changes: wave {self._waves} {document['state']}, {planned} planned, {said}"
        return document

    # --- the end --------------------------------------------------------------------------------------------------

    def _arrived(self) -> dict[str, list[Message]]:
        found: dict[str, list[Message]] = defaultdict(list)
        for message in self._operator.committed("grouped-out"):
            found[(message.key() or b"").decode()].append(message)
        return found

    def _endings(self) -> dict[str, Outcome | None]:
        """How each left under the offset by which it came; None: it is held."""
        said = outcomes_of(self._operator.site)
        by_place = {f"{topic}/{partition}/{offset}": rows for (topic, partition, offset), rows in said.items()}
        rows_of = {id: by_place.get(message.place.decode()) for id, message in self._messages.items()}
        return {id: rows[0].outcome if rows else None for id, rows in rows_of.items()}

    def _open(self) -> set[str]:
        arrived, endings = self._arrived(), self._endings()
        left = {id for id in self._messages if not arrived[id] and endings[id] is not Outcome.CANCELLED}
        self.word = f"changes: {len(left)} have not left"
        return left

    def judge(self, findings: Findings) -> None:
        """Each was cancelled or has arrived, not both and not neither, and its receipt says which."""
        arrived, endings = self._arrived(), self._endings()
        for id, message in self._messages.items():
            cancelled = endings[id] is Outcome.CANCELLED
            here = arrived[id]
            findings.note(
                "lost", f"{id} was neither cancelled nor emitted: {self._receipts[id]}", not (cancelled or here)
            )
            findings.note("repeated", f"{id} arrived {len(here)} times", max(len(here) - 1, 0))
            wrong = self._contradiction(id, message, endings[id], bool(here))
            findings.note("changed", f"{id} {message.action}: {wrong}", bool(wrong))
            for one in here:
                self._judge_arrival(id, message, one, endings[id], findings)
        findings.sent += len(self._messages)
        findings.arrived += sum(map(len, arrived.values()))

    def _contradiction(self, id: str, message: _Message, ending: Outcome | None, arrived: bool) -> str:
        receipts, done = self._receipts[id], ACTIONS[message.action]
        if ending is Outcome.CANCELLED and (arrived or message.action != "cancel"):
            return "it was cancelled, and arrived or was to be fired"
        if ending is Outcome.MOVED and message.action != "fire":
            return "it was moved, and was to be cancelled"
        if len(receipts) > 1 or (message.far and receipts != [done]):
            return f"its receipts are {receipts}"
        if receipts == ["cancelled"] and ending is not Outcome.CANCELLED:
            return f"its receipt says cancelled, the ledger {ending}"
        return ""

    # tidy: one arrival and what is known of it
    def _judge_arrival(
        self, id: str, message: _Message, arrived: Message, ending: Outcome | None, findings: Findings
    ) -> None:
        due_ms, appended_ms = due_of(arrived), arrived.timestamp()[1]
        findings.note("early", f"{id} by {due_ms - appended_ms} ms", appended_ms < due_ms)
        fired = message.action == "fire" and ending is Outcome.MOVED
        wanted = [
            *message.own,
            ("tickover-origin", message.place),
            ("tickover-due", b"%d" % (due_ms if fired else message.due_ms)),
            ("tickover-policy", b"grouped@1"),
            ("tickover-id", message.key),
        ]
        found = (arrived.value(), headers_of(arrived))
        findings.note("changed", f"{id} is {found}, not {wanted}", found != (message.value, wanted))
