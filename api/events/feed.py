"""Listeners of events, and the one task that finds events while somebody listens.

    Looks (snapshots that this process has)  ->  step: compare with the last ones  ->  Ring  ->  listeners

A listener is a place in the ring: no event is copied for it, and nobody waits for it. Who has fallen so far behind that
events are gone gets a `reset`. A listener ends after `LONGEST_S`, so that whoever goes on is asked again who it is; it
resumes where it was.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, Protocol

from api.events.ring import RESET, Event, EventName, Ring, Snapshot, difference

LISTENERS_MAX: Final = 64
STEP_S: Final = 2.0
HEARTBEAT_S: Final = 15.0
LONGEST_S: Final = 300.0
RUN_BYTES: Final = 8

log = logging.getLogger("tickover.api.events")


class TooManyListeners(Exception):
    """There are `LISTENERS_MAX`."""


class NotSeen(Exception):
    """Something that is to be listened to can't be looked at, so that nobody could say when it changes."""


class Looks(Protocol):
    """Snapshots as of now (`api.routes.group.events.Looks`)."""

    async def take(self, wanted: Collection[EventName]) -> Mapping[EventName, Snapshot]:
        """A snapshot for each name that is wanted, but for those that can't be looked at now."""


class Listener:
    """One who listens to events of these names."""

    def __init__(self, wanted: Collection[EventName]) -> None:
        self.wanted = frozenset(wanted)


class Feed:
    """Events of one process. For one event loop, but for `stop`, which any thread may call."""

    def __init__(self, looks: Looks, now_ms: Callable[[], int], listeners_max: int = LISTENERS_MAX) -> None:
        self._looks = looks
        self._now_ms = now_ms
        self._listeners_max = listeners_max
        self._ring = Ring(secrets.token_hex(RUN_BYTES))
        self._seen: dict[EventName, Snapshot] = {}
        self._listeners: set[Listener] = set()
        self._news = asyncio.Event()  # set once, then another one takes its place
        self._stepping = asyncio.Lock()
        self._producer: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopped = False

    # --- listening ------------------------------------------------------------------------------------------------

    def enter(self, wanted: Collection[EventName]) -> Listener:
        """Somebody begins to listen, until `leave`. Raises TooManyListeners."""
        if len(self._listeners) >= self._listeners_max:
            raise TooManyListeners
        listener = Listener(wanted)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Somebody listens no more. Without listeners nothing is looked at."""
        self._listeners.discard(listener)
        if not self._listeners and self._producer is not None:
            self._producer.cancel()
            self._producer = None

    async def begin(self, listener: Listener) -> None:
        """Look at what the listener wants, so that it misses nothing that changes from now on. Raises NotSeen."""
        await self.step()
        if not listener.wanted <= self._seen.keys():
            raise NotSeen

    async def listen(self, listener: Listener, last_id: str | None, follow: bool) -> AsyncIterator[Event | None]:
        """Events after the one of this id, or a `reset`, and then those that come; None: there was nothing for
        `HEARTBEAT_S`. It ends after `LONGEST_S`, when the feed stops, and without `follow` when all is told.
        """
        loop = self._loop = asyncio.get_running_loop()
        if follow and self._has_no_producer():
            self._producer = loop.create_task(self._produce())
        end_s = loop.time() + LONGEST_S
        number = None if last_id is None else self._ring.number_of(last_id)
        while True:
            news = self._news  # before the ring is looked at: what comes meanwhile sets it
            events = None if number is None else self._ring.after(number)
            number = self._ring.last
            if events is None:
                yield Event(self._ring.id_of(number), RESET, self._now_ms())
            for event in events or ():
                if event.name in listener.wanted:
                    yield event
            left_s = end_s - loop.time()
            if not follow or left_s <= 0 or self._is_stopped or self._has_no_producer():
                return
            try:
                async with asyncio.timeout(min(HEARTBEAT_S, left_s)):
                    await news.wait()
            except TimeoutError:
                yield None

    def stop(self) -> None:
        """End all that listen, and whoever comes later at once. Twice is harmless."""
        self._is_stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop has ended, and all listeners with it
                self._loop.call_soon_threadsafe(self._wake)

    # --- finding --------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Compare what there is with what was seen last, and tell the differences. The first look tells nothing."""
        async with self._stepping:
            wanted = frozenset[EventName]().union(*(listener.wanted for listener in self._listeners))
            last = self._ring.last
            for name, snapshot in (await self._looks.take(wanted)).items():
                before = self._seen.get(name)
                self._seen[name] = snapshot
                if before is not None and (found := difference(before, snapshot)) is not None:
                    self._ring.add(name, self._now_ms(), found)
            if self._ring.last > last:
                self._wake()

    async def _produce(self) -> None:
        try:
            while True:
                await asyncio.sleep(STEP_S)
                await self.step()
        except Exception as error:  # noqa: BLE001 - who listens must not wait for what never comes: they begin anew
            log.error("events end, since looking failed: %s", type(error).__name__)
        finally:
            self._wake()

    def _has_no_producer(self) -> bool:
        return self._producer is None or self._producer.done()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
