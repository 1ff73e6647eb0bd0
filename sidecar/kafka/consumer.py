"""The group's consumer as the engine's port, and what its errors mean."""

import logging
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from policies.kafka_clients import ClientLost, Consumer, is_fatal
from sidecar.kafka.background import in_background
from sidecar.kafka.client_settings import ANSWER_TIMEOUT_S
from sidecar.kafka.committed_offsets import commits_of
from sidecar.kafka.errors import OnProblem, error_callback
from sidecar.model.ports import GroupEvents, Member
from sidecar.model.record import TopicPartition

log = logging.getLogger(__name__)

UNREAD: Final = 0  # where a partition is assigned, paused: a number, because for any other word the brokers are asked
_OnRebalance = Callable[[Any, list[ClientPartition]], None]  # the first is the consumer

_METADATA_BEGIN: Final = b"CGMDv2:"
_GENERATION: Final = struct.Struct("=i")

OWN_FENCE_S: Final = 60.0  # after its session was lost, a static member that is fenced has fenced itself
REJOIN_S: Final = 60.0  # how long a consumer that lost its session has for being back in its group
REJOIN_MAX_S: Final = 600.0  # the same after many in vain
REFUSED_MAX_S: Final = 120.0  # so long a process that the group refuses waits for somebody to change that; then it ends
# Why a group takes a member not in, and what to do; to wait changes nothing.
REFUSALS: Final[Mapping[int, str]] = {
    KafkaError.INVALID_SESSION_TIMEOUT: "session.timeout.ms is below the brokers' group.min.session.timeout.ms or "
    "above their group.max.session.timeout.ms: set kafka.client.session.timeout.ms",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "no right to read the group: `tickover acl` prints what is needed",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "another program is in the group, with another protocol or assignor: give "
    "tickover a group of its own",
    KafkaError.GROUP_MAX_SIZE_REACHED: "the group is full: raise the brokers' group.max.size, or run fewer replicas",
    KafkaError.INVALID_GROUP_ID: "the brokers take no group of this name",
}


class JoinRefused(Exception):
    """The group doesn't take this process in, and nobody has changed that for a while."""


class KafkaIntake:
    """The group's consumer as the engine's port.

    Another consumer takes its place when the client can't get back into the group after its session was lost:

    * A static member (`group.instance.id`) then asks to join without saying who it was. To the coordinator that is
      another process of the same name. It fences the former one, and where an answer to that is under way, the client
      takes it for its own. Fenced without a session lost before: another process has the name, and this one ends.
    * The client may wait for nothing, silently and for ever (seen where brokers restart one after the other).
    """

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        self.events: GroupEvents
        # As we were told: a client that is fenced knows of none, and tells nobody.
        self._assigned: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._unread: set[TopicPartition] = set()  # assigned, and where they begin isn't known yet
        self._topics: Sequence[str] = ()
        self._waited: list[Message] = []  # what came while `wait` waited: the next `take` gives it first
        self._is_told = False  # of a rebalance, since the last `wait`
        self._lost_at_s = -OWN_FENCE_S
        self._patience_s = REJOIN_S
        self._anew_at_s = math.inf  # when it must be back in its group
        self._refusal = ""
        self._give_up_at_s = math.inf  # when a group that refuses this process must have taken it in
        self._settings = {**settings, "error_cb": error_callback(on_problem), "on_commit": self._on_commit}
        self._consumer = Consumer(self._settings)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Consume these topics; callable again when the sources change."""
        self._topics = topics
        if not topics:
            self._consumer.unsubscribe()
            self.events.assigned([])  # nothing to wait for: all there is to consume is consumed
            return
        assign, revoke, lost = map(self._from_current, (self._on_assign, self._on_revoke, self._on_lost))
        self._consumer.subscribe(list(topics), on_assign=assign, on_revoke=revoke, on_lost=lost)

    def rejoin(self, member_id: str) -> bool:
        """Leave the group and join it again, if this is who we are in it: so it deals out its partitions anew."""
        if self._consumer.memberid() != member_id:
            return False
        self._consumer.unsubscribe()
        self.subscribe(self._topics)
        return True

    def take(self, count: int) -> list[Message]:
        """At most `count` records, without waiting. Group events come from within."""
        messages, self._waited = self._waited, []
        try:
            messages += self._consumer.consume(count - len(messages), 0)
            if any(message.error() is not None for message in messages):
                messages = [message for message in messages if not self._is_error(message)]
        except KafkaException as error:
            self._survive(error)
            return []
        if time.monotonic() > self._give_up_at_s:
            raise JoinRefused(self._refusal)
        if time.monotonic() > self._anew_at_s:
            self._join_anew("not back in its group in time")
        return messages

    def wait(self, seconds: float) -> bool:
        """See the port. `consume` would wait for as many records as it is asked for: `poll` returns with the first."""
        self._is_told = False
        try:
            message = None if self._waited else self._consumer.poll(seconds)
        except KafkaException as error:
            self._survive(error)
            return True
        if message is not None:
            self._waited = [message]
        return bool(self._waited) or self._is_told

    def _survive(self, error: KafkaException) -> None:
        """Raise what ends the process; go on with another consumer where this one has fenced itself, or is lost."""
        if isinstance(error, ClientLost):
            self._join_anew(error.args[0].str())
            return
        if not is_fatal(error.args[0]) or time.monotonic() - self._lost_at_s > OWN_FENCE_S:
            raise error
        self._join_anew(f"fenced by its own return: {error.args[0].str()}")
        self._lost_at_s = -OWN_FENCE_S  # who fences us next is somebody else

    def pause(self, lanes: Sequence[TopicPartition]) -> None:
        """Fetch nothing more of these for now."""
        self._paused.update(lanes)
        self._consumer.pause(_partitions(lanes))

    def resume(self, lanes: Sequence[TopicPartition]) -> None:
        """Fetch on."""
        self._paused.difference_update(lanes)
        self._consumer.resume(_partitions(lanes))

    def begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        """From where each of these is read, now that it is known. They stay paused."""
        for lane, offset in offsets.items():
            self._unread.discard(lane)
            self._read_from(lane, offset)

    def positions(self, lanes: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See the port. Before its first record, and after a seek, the client knows of none (a negative number)."""
        asked = [lane for lane in lanes if lane in self._assigned and lane not in self._unread]
        if not asked:
            return {}
        found = self._consumer.position(_partitions(asked))
        return {
            TopicPartition(one.topic, one.partition): one.offset
            for one in found
            if one.error is None and one.offset >= 0
        }

    def _read_from(self, lane: TopicPartition, offset: int) -> None:
        """Seek. A partition whose offset was out of range the client has given up: assigned anew, it starts again."""
        place = ClientPartition(lane.topic, lane.partition, offset)
        try:
            self._consumer.seek(place)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            self._consumer.incremental_unassign(_partitions([lane]))
            self._consumer.incremental_assign([place])
            if lane in self._paused:
                self._consumer.pause(_partitions([lane]))

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]], wait: bool) -> None:
        """Commit with metadata. Without `wait` a failure is logged and the next commit makes up for it.

        Not without a name: brokers take a commit from anybody while the group has no members, also one that is older
        than what the partition's last owner has left.
        """
        if not self.member().is_named:
            log.warning("commit not sent: this process has no place in its group; the ledger makes up for it")
            return
        try:
            for some in commits_of(offsets):
                if wait:
                    self._on_commit(None, self._consumer.commit(offsets=some, asynchronous=False) or [])
                else:
                    self._consumer.commit(offsets=some, asynchronous=True)
        except KafkaException as error:
            log.warning("commit failed; the ledger makes up for it", extra={"error": str(error.args[0])})

    def member(self) -> Member:
        """The consumer's group metadata."""
        metadata = self._consumer.consumer_group_metadata()
        named = is_named(metadata)
        return Member(metadata, bool(self._consumer.memberid()) if named is None else named)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _join_anew(self, reason: str) -> None:
        log.warning("another consumer takes the place of one that is of no use any more", extra={"reason": reason})
        former, self._waited = self._consumer, []
        self._lost(list(self._assigned))
        self._patience_s = min(2 * self._patience_s, REJOIN_MAX_S)  # brokers may be away for long
        self._consumer = Consumer(self._settings)
        self.subscribe(self._topics)
        in_background(former.close)  # that may wait for brokers

    def _from_current(self, take: _OnRebalance) -> _OnRebalance:
        """`take` without calls from a former consumer: what that says at its end, in another thread, is no news."""
        current = self._consumer

        def take_from_current(consumer: Consumer, partitions: list[ClientPartition]) -> None:
            if current is self._consumer:
                self._is_told = True
                take(consumer, partitions)

        return take_from_current

    # --- rebalances, on the engine's thread, within `take` --------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        """New partitions, paused until their lanes are recovered and `begin` says where they are read from.

        What is raised in a callback comes out of `consume` or `close`: it ends the engine.
        """
        self._anew_at_s, self._patience_s = math.inf, REJOIN_S
        self._refusal, self._give_up_at_s = "", math.inf
        lanes = [TopicPartition(part.topic, part.partition) for part in partitions]
        self._assigned.update(lanes)
        self._unread.update(lanes)
        consumer.incremental_assign([ClientPartition(lane.topic, lane.partition, UNREAD) for lane in lanes])
        self.pause(lanes)
        self.events.assigned(lanes)

    def _on_revoke(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        lanes = [TopicPartition(part.topic, part.partition) for part in partitions]
        self.events.revoked(lanes)
        self._forget(lanes)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._lost([TopicPartition(part.topic, part.partition) for part in partitions])
        consumer.incremental_unassign(partitions)

    def _lost(self, lanes: Sequence[TopicPartition]) -> None:
        self._lost_at_s = time.monotonic()
        self._anew_at_s = self._lost_at_s + self._patience_s
        self.events.lost(lanes)
        self._forget(lanes)

    def _forget(self, lanes: Sequence[TopicPartition]) -> None:
        self._assigned.difference_update(lanes)
        self._paused.difference_update(lanes)
        self._unread.difference_update(lanes)

    # --- errors ---------------------------------------------------------------------------------------------------

    def _is_error(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._out_of_range(message, error)
            return True
        if is_fatal(error):  # such as fenced by another process with the same instance id
            raise KafkaException(error)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.events.unreadable(message.topic() or "", error.str())
        elif error.code() in REFUSALS and not self._assigned:
            self._note_refusal(error)
        else:
            log.warning("consumer", extra={"error": str(error)})
        return True

    def _note_refusal(self, error: KafkaError) -> None:
        """The client goes on asking, and says this once."""
        if not self._refusal:
            self._give_up_at_s = time.monotonic() + REFUSED_MAX_S
        self._refusal = f"{REFUSALS[error.code()]} ({error.str()})"
        self.events.refused(self._refusal)
        log.error("the consumer group refuses this process", extra={"why": self._refusal})

    def _first_of(self, lane: TopicPartition) -> int | None:
        """Where the log begins; None: nobody says."""
        try:
            return self._consumer.get_watermark_offsets(ClientPartition(*lane), timeout=ANSWER_TIMEOUT_S)[0]
        except KafkaException:
            return None

    def _out_of_range(self, message: Message, error: KafkaError) -> None:
        """The source's retention overtook us while we were reading: go on at its start, and say so.

        Or its log was cut back: it ends before what was read, or did until new records came. The client looks for that
        whenever a partition has another leader, and says no offset then. Where to read on, who reads it must find out.
        """
        lane, wanted = TopicPartition(message.topic() or "", message.partition() or 0), message.offset()
        if lane in self._unread:
            return  # fetched before it was paused: `begin` says from where it is read
        first = self._first_of(lane)
        if wanted is None or first is None or first < wanted:
            log.warning(
                "a source may have lost the end of its log", extra={"source_partition": str(lane), "error": str(error)}
            )
            self.events.out_of_range(lane)
            return
        log.error(
            "records were deleted by the source's retention before they were read; reading on at its start",
            extra={"topic": lane.topic, "partition": lane.partition, "error": str(error)},
        )
        self._read_from(lane, first)

    def _on_commit(self, error: KafkaError | None, places: list[ClientPartition]) -> None:
        failed = {str(place.error) for place in places if place.error is not None}
        if error is not None or failed:
            log.warning("commit failed; the ledger makes up for it", extra={"error": str(error or sorted(failed))})
        if error is None:
            known = [place for place in places if place.error is None]
            self.events.committed(
                {TopicPartition(one.topic, one.partition): (one.offset, one.metadata or "") for one in known}
            )


def is_named(metadata: bytes) -> bool | None:
    """Whether the client's group metadata has a generation and a member's name; None: it is of another form than this.

        "CGMDv2:" | generation (int32, as this machine has it) | group | 0 | member | 0 | ...

    The client takes the name away when its session is over, and the generation when a broker says that it is another.
    """
    if not metadata.startswith(_METADATA_BEGIN):
        return None
    [generation] = _GENERATION.unpack_from(metadata, len(_METADATA_BEGIN))
    _, member, *_ = metadata[len(_METADATA_BEGIN) + _GENERATION.size :].split(b"\0")
    return bool(generation >= 0 and member)


def _partitions(lanes: Sequence[TopicPartition]) -> list[ClientPartition]:
    return [ClientPartition(lane.topic, lane.partition) for lane in lanes]
