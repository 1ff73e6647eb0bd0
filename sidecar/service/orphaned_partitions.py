"""Partitions of sources that no member of the group has: looked for, and the group made to deal them out.

With static members a group may be stable with partitions that nobody reads: a member that comes back gets what it had,
without a rebalance, and so nobody deals out what was added to a source while the group's leader was away. Clients look
for added partitions only from when they began.
"""

import logging
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from policies.kafka_clients import AdminClient
from sidecar.model.record import TopicPartition
from sidecar.service.assembly import Machinery

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
STABLE: Final = "Stable"  # the coordinator's word for: every member has got its share
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")


class Member(NamedTuple):
    """A member of the group and what it was given."""

    id: str
    lanes: frozenset[TopicPartition]


class Unowned:
    """Looks again and again, in housekeeping. `partitions` is how many each source has.

    What nobody has twice in a row was not just on its way from one member to another. The first member by id then
    leaves the group and joins again: once for the same partitions, since an assignor may have its reasons.
    """

    def __init__(
        self, admin: AdminClient, group: str, machinery: Machinery, partitions: Callable[[], Mapping[str, int]]
    ) -> None:
        self._admin = admin
        self._group = group
        self._machinery = machinery
        self._partitions = partitions
        self._seen: frozenset[TopicPartition] = frozenset()
        self._told: frozenset[TopicPartition] = frozenset()

    def look(self) -> None:
        """Raises KafkaException where the brokers don't answer."""
        members = members_of(self._admin, self._group)
        if not members:
            return  # a rebalance is under way
        sources = {
            TopicPartition(topic, number) for topic, count in self._partitions().items() for number in range(count)
        }
        unowned = frozenset(sources.difference(*(member.lanes for member in members)))
        before, self._seen = self._seen, unowned
        if not unowned:
            self._told = unowned
        if not unowned or unowned != before or unowned == self._told:
            return
        self._told = unowned
        first, intake = min(members).id, self._machinery.intake
        if self._machinery.engine.submit(lambda _: intake.rejoin(first)).result(ANSWER_S):
            names = sorted(map(str, unowned))
            log.warning("joined the group again: no member had these partitions", extra={"partitions": names})


def members_of(admin: AdminClient, group: str) -> list[Member]:
    """The members of a stable group, nobody while it rebalances. Raises KafkaException.

    By the client's older call: describe_consumer_groups may abort the process when brokers go away (librdkafka #4605).
    """
    described: list[Any] = admin.list_groups(group, timeout=ANSWER_S)
    members = [one for found in described if found.state == STABLE for one in found.members]
    return [Member(one.id, _lanes_of(one.assignment)) for one in members]


def _lanes_of(assignment: bytes) -> frozenset[TopicPartition]:
    """Of the bytes that the leader made (Kafka's ConsumerProtocolAssignment); none, where it gave the member nothing.

        version int16 | topics int32 | for each: length int16, name | partitions int32 | for each: int32 | more

    By hand: a library for all of Kafka's protocol takes 0.2 s of the interpreter to import, and where hypothesis is
    installed it imports that, too. Raises struct.error where the bytes end too soon.
    """
    if not assignment:
        return frozenset()
    lanes, at = set[TopicPartition](), _SHORT.size
    (topics,), at = _INT.unpack_from(assignment, at), at + _INT.size
    for _ in range(topics):
        (length,), at = _SHORT.unpack_from(assignment, at), at + _SHORT.size
        name, at = assignment[at : at + length].decode(), at + length
        (count,), at = _INT.unpack_from(assignment, at), at + _INT.size
        numbers, at = struct.unpack_from(f">{count}i", assignment, at), at + count * _INT.size
        lanes.update(TopicPartition(name, number) for number in numbers)
    return frozenset(lanes)
