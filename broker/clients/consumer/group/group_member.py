"""Kafka's AbstractCoordinator: one member of a group, in the classic protocol.

    UNJOINED               no member, or one that must join again    -> PREPARING_REBALANCE
    PREPARING_REBALANCE    waits for the answer to JoinGroup         -> COMPLETING_REBALANCE, UNJOINED
    COMPLETING_REBALANCE   waits for the answer to SyncGroup         -> STABLE, UNJOINED
    STABLE                 has its part; heartbeats                  -> PREPARING_REBALANCE, UNJOINED

What an error means for the member is decided in one place: `deal`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from broker.clients.consumer.consumer_records import ConsumerSettings
from broker.clients.consumer.group.coordinator_link import LOADING, MOVED, CoordinatorLink
from broker.clients.consumer.group.heartbeat import Heartbeat
from broker.protocol.api_keys import ApiKey
from purgatory.errors import ApiError, Errors

PROTOCOL_TYPE: Final = "consumer"
JOIN_LAPSE_S: Final = 5.0  # an answer to JoinGroup may be that much later than the rebalance's time-out


class MemberState(Enum):
    """See above."""

    UNJOINED = "unjoined"
    PREPARING_REBALANCE = "preparing rebalance"
    COMPLETING_REBALANCE = "completing rebalance"
    STABLE = "stable"


class Generation(NamedTuple):
    """A member in one generation of its group, and the protocol that was chosen there."""

    generation_id: int = -1
    member_id: str = ""
    protocol_name: str = ""


class Assigned(NamedTuple):
    """A member's part, as the leader wrote it."""

    generation: Generation
    is_leader: bool
    assignment: bytes


Lead = Callable[[str, Sequence[Any]], Awaitable[Mapping[str, bytes]]]
"""(protocol, members) -> each member's part. Members are kio's, of the answer to JoinGroup."""


class GroupMember:
    """`changed` is called when the user's next poll has something to do."""

    def __init__(self, settings: ConsumerSettings, link: CoordinatorLink, changed: Callable[[], None]) -> None:
        self._settings = settings
        self._link = link
        self._changed = changed
        self._heartbeat = Heartbeat(settings, 0.0)
        self._is_joined = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        self._failure: ApiError | None = None
        self.state = MemberState.UNJOINED
        self.generation = Generation()
        self.must_join = True
        self.must_prepare = True  # the user is told of what is given back, or lost, before joining

    @property
    def is_dynamic(self) -> bool:
        """Whether it has no name of its own: such a one leaves at its end."""
        return self._settings.group_instance_id is None

    @property
    def _rebalance_s(self) -> float:
        """How long the others may take."""
        return max(self._settings.request_timeout_ms, self._settings.max_poll_interval_ms) / 1000 + JOIN_LAPSE_S

    def polled(self) -> None:
        """The user takes part. ApiError: what a heartbeat was told, if the user must know."""
        self._heartbeat.polled(self._now_s())
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def join(self, protocols: Mapping[str, bytes], lead: Lead) -> Assigned | None:
        """One attempt at the next generation; None: try again. ApiError: that would not help."""
        self.must_join = True
        self._enter(MemberState.PREPARING_REBALANCE)
        try:
            told = await self._ask_to_join(protocols)
            if told is None:
                return None
            self.generation = Generation(told.generation_id, told.member_id, told.protocol_name or "")
            self._enter(MemberState.COMPLETING_REBALANCE)
            is_leader = told.leader == told.member_id
            parts: Mapping[str, bytes] = {}
            if is_leader:
                # A static leader that came back need not assign, but shall know what the others want.
                parts = await lead(self.generation.protocol_name, told.members)
            synced = await self._sync({} if told.skip_assignment else parts)
        except OSError:
            return None
        finally:
            if self.state is not MemberState.STABLE:
                self._enter(MemberState.UNJOINED)
        return None if synced is None else Assigned(self.generation, is_leader, synced.assignment)

    async def _ask_to_join(self, protocols: Mapping[str, bytes]) -> Any | None:
        """The answer to JoinGroup; a dynamic member is given an id first."""
        body: dict[str, Any] = {
            "session_timeout": self._settings.session_timeout_ms,
            "rebalance_timeout": self._settings.max_poll_interval_ms,
            "group_instance_id": self._settings.group_instance_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols.items()],
        }
        while True:
            told = await self._link.ask(
                ApiKey.JOIN_GROUP, self._rebalance_s, member_id=self.generation.member_id, **body
            )
            error = Errors(told.error_code)
            if error is Errors.NONE:
                return told
            if error is not Errors.MEMBER_ID_REQUIRED:
                self.deal(error)
                return None
            self.generation = Generation(member_id=told.member_id)

    async def _sync(self, parts: Mapping[str, bytes]) -> Any | None:
        generation = self.generation
        told = await self._link.ask(
            ApiKey.SYNC_GROUP,
            self._rebalance_s,
            **self.claim(),
            protocol_type=PROTOCOL_TYPE,
            protocol_name=generation.protocol_name,
            assignments=[{"member_id": member, "assignment": part} for member, part in parts.items()],
        )
        if self.generation != generation:
            return None  # a heartbeat has ended it meanwhile
        if told.error_code != Errors.NONE:
            self.deal(Errors(told.error_code))
            return None
        self.must_join = False
        self._enter(MemberState.STABLE)
        return told

    def claim(self) -> dict[str, Any]:
        """Fields of requests by which the member says who it is."""
        return {
            "generation_id": self.generation.generation_id,
            "member_id": self.generation.member_id,
            "group_instance_id": self._settings.group_instance_id,
        }

    def deal(self, error: Errors) -> None:
        """With an error that its generation has met. ApiError: there is nothing to be done."""
        if error in MOVED:
            self._link.forget()
        elif error is Errors.REBALANCE_IN_PROGRESS:
            self.must_join = True
        elif error is Errors.ILLEGAL_GENERATION:
            self._reset(self.generation.member_id)
        elif error in (Errors.UNKNOWN_MEMBER_ID, Errors.FENCED_INSTANCE_ID):
            self._reset()
        if error is Errors.FENCED_INSTANCE_ID or error not in DEALT_WITH:
            raise ApiError(error, f"{error.name} in group {self._link.group_id}")

    async def leave(self, *, says_so: bool) -> None:
        """Be a member no more. The coordinator is told if it `says_so`, or waits until the session ends."""
        generation = self.generation
        self._reset()
        if says_so and generation.member_id:
            who = {"member_id": generation.member_id, "group_instance_id": self._settings.group_instance_id}
            try:
                await self._link.ask(ApiKey.LEAVE_GROUP, members=[who])
            except OSError:
                self._link.forget()  # it will find out when the session ends

    async def close(self) -> None:
        """No more heartbeats. Twice is harmless."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)

    def _enter(self, state: MemberState) -> None:
        self.state = state
        if state in (MemberState.COMPLETING_REBALANCE, MemberState.STABLE):
            self._heartbeat.restart(self._now_s())
            self._is_joined.set()
            if self._heartbeats is None:
                self._heartbeats = asyncio.create_task(self._send_heartbeats())
        else:
            self._is_joined.clear()

    def _reset(self, member_id: str = "") -> None:
        self.generation = Generation(member_id=member_id)
        self.must_join = self.must_prepare = True
        self._enter(MemberState.UNJOINED)

    async def _send_heartbeats(self) -> None:
        while True:
            await self._is_joined.wait()
            now_s = self._now_s()
            if self._heartbeat.is_poll_overdue(now_s):
                await self.leave(says_so=self.is_dynamic)
            elif now_s >= self._heartbeat.next_s:
                await self._send_heartbeat(now_s)
            else:
                await asyncio.sleep(self._heartbeat.wait_s(now_s))

    async def _send_heartbeat(self, now_s: float) -> None:
        generation = self.generation
        self._heartbeat.sent(now_s)
        try:
            told = await self._link.ask(ApiKey.HEARTBEAT, self._heartbeat.answer_in_s(now_s), **self.claim())
            self._heartbeat.received(self._now_s())
            error = Errors(told.error_code)
            # In a rebalance, that there is one is no news.
            is_known = error is Errors.REBALANCE_IN_PROGRESS and self.state is not MemberState.STABLE
            if error is Errors.NONE or is_known or self.generation != generation:
                return
            self.deal(error)
        except OSError:
            self._heartbeat.failed(self._now_s())
            return
        except ApiError as failure:
            self._failure = failure
        self._changed()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


DEALT_WITH: Final = frozenset(
    {*MOVED, LOADING, Errors.REBALANCE_IN_PROGRESS, Errors.ILLEGAL_GENERATION, Errors.UNKNOWN_MEMBER_ID}
)
"""Errors after which the member goes on."""
