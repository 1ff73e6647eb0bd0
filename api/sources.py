"""Where a caller's records may come in and lead to: into sources of the group, and never to a reserved topic.

Whatever REST takes in asks here: messages, schedules, and control records, which go where a message is held.
"""

import asyncio
from collections.abc import Container
from typing import Final

from api.ports import Acknowledged, Outgoing, Ports, Sender, SenderRefused
from api.problems import Problem, unprocessable
from policies.decide import decide
from policies.decision import TARGET_NOT_ALLOWED, Decision, Facts, Hold, Quarantine
from policies.table import PolicyTable
from sidecar.lookup.query import LookUpUnavailable
from sidecar.model.reserved_topics import NOT_A_SOURCE, RESERVED

RETRY_LATER: Final = {"Retry-After": "1"}


async def refuse_unless_source(ports: Ports, topic: str) -> None:
    """Refuse a topic that the group doesn't consume: its records would never be emitted. Raises `Problem`."""
    if topic in ports.sources.reserved:
        raise unprocessable("not-a-source", f"The group does not consume {topic}: it {RESERVED}.")
    if topic in ports.sources.topics:
        return
    try:
        consumed = await asyncio.to_thread(ports.sources.is_source, topic)
    except LookUpUnavailable as error:
        detail = f"Whether {topic} is consumed isn't known: {error}"
        raise Problem(503, "kafka-unavailable", detail, RETRY_LATER) from None
    if not consumed:
        raise unprocessable(
            "not-a-source",
            f"The group does not consume {topic}: no policy makes it a source, or it holds dead letters, or `sources` "
            "leaves it out, or it is compacted.",
        )


def decision_of(facts: Facts, table: PolicyTable, reserved: Container[str]) -> Decision:
    """Decide as the engine will."""
    return allowed(decide(facts, table), reserved)


def allowed(decision: Decision, reserved: Container[str]) -> Decision:
    """A decision as it stands: no policy lets a record into a reserved topic."""
    if isinstance(decision, Hold) and decision.target in reserved:
        return Quarantine(TARGET_NOT_ALLOWED, f"{decision.target} {RESERVED}")
    return decision


class SourceSender:
    """Kafka, for the records of callers: refuses one for a reserved topic, whatever has led there."""

    def __init__(self, sender: Sender, reserved: Container[str]) -> None:
        self._sender = sender
        self._reserved = reserved

    async def send(self, record: Outgoing) -> Acknowledged:
        """Raises `SenderError`."""
        if record.topic in self._reserved:
            raise SenderRefused(NOT_A_SOURCE, f"{record.topic} {RESERVED}")
        return await self._sender.send(record)

    async def partition_count(self, topic: str) -> int | None:
        """See `Sender.partition_count`."""
        return await self._sender.partition_count(topic)
