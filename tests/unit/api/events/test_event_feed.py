"""The feed of events: what is looked at and when, who hears what, and how each listener ends."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.events import feed as feeds
from api.events.feed import Feed, Listener, NotSeen, TooManyListeners
from api.events.ring import EVENTS_KEPT, RESET, Event, EventName, Snapshot

HEARD_S = 60.0  # until a test gives up
POLICIES, PAUSES, OVERVIEW = EventName.POLICIES, EventName.PAUSES, EventName.OVERVIEW


@dataclass
class MemoryLooks:
    """Snapshots as a test says; what is `away` can't be looked at."""

    there: dict[EventName, Snapshot] = field(default_factory=lambda: {name: {} for name in EventName})
    away: set[EventName] = field(default_factory=set)
    taken: list[frozenset[EventName]] = field(default_factory=list)
    failure: Exception | None = None

    async def take(self, wanted: Collection[EventName]) -> Mapping[EventName, Snapshot]:
        self.taken.append(frozenset(wanted))
        if self.failure is not None:
            raise self.failure
        return {name: self.there[name] for name in wanted if name not in self.away}


def run(test: Callable[[Feed, MemoryLooks], Awaitable[None]], listeners_max: int = 4) -> None:
    async def bounded() -> None:
        looks = MemoryLooks()
        async with asyncio.timeout(HEARD_S):
            await test(Feed(looks, lambda: 1_000, listeners_max), looks)

    asyncio.run(bounded())


async def wait_until(true: Callable[[], bool]) -> None:
    """Let others go on until it is true; `run` has the deadline."""
    while not true():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0)


async def heard(feed: Feed, listener: Listener, last_id: str | None = None) -> list[Event]:
    """All that is told at once."""
    await feed.begin(listener)
    return [event async for event in feed.listen(listener, last_id, follow=False) if event is not None]


def told(events: list[Event]) -> list[tuple[Any, ...]]:
    return [(event.name, *event.difference) for event in events]


def test_who_comes_without_an_id_begins_with_a_reset() -> None:
    async def test(feed: Feed, _: MemoryLooks) -> None:
        events = await heard(feed, feed.enter([POLICIES]))
        assert told(events) == [(RESET, (), (), (), 0)]
        assert await heard(feed, feed.enter([POLICIES]), events[0].id) == []

    run(test)


def test_who_resumes_hears_what_changed_while_nobody_listened() -> None:
    async def test(feed: Feed, looks: MemoryLooks) -> None:
        looks.there[POLICIES] = {"kept": 1, "old": 1, "gone": 1}
        listener = feed.enter([POLICIES, PAUSES])
        id = (await heard(feed, listener))[-1].id
        feed.leave(listener)
        looks.there[POLICIES] = {"kept": 1, "old": 2, "new": 1}
        listener = feed.enter([POLICIES, PAUSES])
        for _ in range(2):  # as often as it is asked
            assert told(await heard(feed, listener, id)) == [(POLICIES, ("new",), ("old",), ("gone",), 0)]
        assert told(await heard(feed, listener, "run-of-another-7")) == [(RESET, (), (), (), 0)]

    run(test)


def test_only_what_somebody_wants_is_looked_at_and_told() -> None:
    async def test(feed: Feed, looks: MemoryLooks) -> None:
        one, other = feed.enter([POLICIES]), feed.enter([OVERVIEW])
        ids = [(await heard(feed, listener))[-1].id for listener in (one, other)]
        assert looks.taken[-1] == {POLICIES, OVERVIEW}
        looks.there |= {POLICIES: {"a": 1}, OVERVIEW: {"held": 1}, PAUSES: {"target/push": 1}}
        assert told(await heard(feed, one, ids[0])) == [(POLICIES, ("a",), (), (), 0)]
        assert told(await heard(feed, other, ids[1])) == [(OVERVIEW, ("held",), (), (), 0)]
        feed.leave(other)
        await feed.step()
        assert looks.taken[-1] == {POLICIES}

    run(test)


def test_what_cannot_be_looked_at_is_told_later_and_nobody_begins_with_it() -> None:
    async def test(feed: Feed, looks: MemoryLooks) -> None:
        looks.away = {OVERVIEW}
        with pytest.raises(NotSeen):
            await feed.begin(feed.enter([OVERVIEW]))
        looks.away = set()
        listener = feed.enter([OVERVIEW])
        id = (await heard(feed, listener))[-1].id
        looks.away, looks.there[OVERVIEW] = {OVERVIEW}, {"held": 1}
        assert await heard(feed, listener, id) == []
        looks.away = set()
        assert told(await heard(feed, listener, id)) == [(OVERVIEW, ("held",), (), (), 0)]

    run(test)


def test_who_is_too_slow_is_told_to_read_all_again() -> None:
    async def test(feed: Feed, looks: MemoryLooks) -> None:
        listener = feed.enter([POLICIES])
        await feed.begin(listener)
        events = feed.listen(listener, None, follow=True)
        first = await anext(events)
        for version in range(EVENTS_KEPT + 1):
            looks.there[POLICIES] = {"a": version}
            await feed.step()
        reset = await anext(events)
        assert first is not None
        assert reset is not None
        assert (reset.name, reset.id != first.id) == (RESET, True)
        looks.there[POLICIES] = {}
        await feed.step()
        gone = await anext(events)
        assert gone is not None
        assert gone.difference.removed == ("a",)
        feed.leave(listener)

    run(test)


def test_a_change_reaches_all_who_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "STEP_S", 0.01)

    async def test(feed: Feed, looks: MemoryLooks) -> None:
        async def follow() -> list[str]:
            listener = feed.enter([POLICIES])
            await feed.begin(listener)
            names = []
            async for event in feed.listen(listener, None, follow=True):
                names.append(event.name if event else "")
                begun.release()
                if len(names) == 2:
                    break
            feed.leave(listener)
            return names

        begun = asyncio.Semaphore(0)
        following = [asyncio.create_task(follow()) for _ in range(3)]
        for _ in following:
            await begun.acquire()
        looks.there[POLICIES] = {"a": 1}
        assert await asyncio.gather(*following) == [[RESET, POLICIES]] * 3
        await wait_until(lambda: asyncio.all_tasks() == {asyncio.current_task()})  # nobody listens: nobody looks

    run(test)


def test_silence_is_told_and_the_stream_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(feeds, "LONGEST_S", 1.0)

    async def test(feed: Feed, _: MemoryLooks) -> None:
        listener = feed.enter([POLICIES])
        await feed.begin(listener)
        events = [event async for event in feed.listen(listener, None, follow=True)]
        assert [event.name for event in events if event] == [RESET]
        assert events.count(None) >= 2
        feed.leave(listener)

    run(test)


def test_a_stop_ends_all_who_listen_and_whoever_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_S", 2 * HEARD_S)  # nothing else wakes who waits

    async def test(feed: Feed, _: MemoryLooks) -> None:
        listener = feed.enter([POLICIES])
        await feed.begin(listener)
        events = feed.listen(listener, None, follow=True)
        await anext(events)
        waiting = asyncio.create_task(anext(events, None))
        assert await asyncio.wait([waiting], timeout=0.01) == (set(), {waiting})
        await asyncio.to_thread(feed.stop)
        feed.stop()
        assert await waiting is None
        assert [event.name async for event in feed.listen(listener, None, follow=True) if event] == [RESET]
        feed.leave(listener)

    run(test)
    Feed(MemoryLooks(), lambda: 0).stop()


def test_a_look_that_fails_ends_who_listens_and_the_next_one_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "STEP_S", 0.01)

    async def test(feed: Feed, looks: MemoryLooks) -> None:
        listener = feed.enter([POLICIES])
        await feed.begin(listener)
        looks.failure = ZeroDivisionError()
        assert [event.name async for event in feed.listen(listener, None, follow=True) if event] == [RESET]
        looks.failure = None
        events = feed.listen(listener, None, follow=True)
        await anext(events)
        looks.there[POLICIES] = {"a": 1}
        event = await anext(events)
        assert event is not None
        assert told([event]) == [(POLICIES, ("a",), (), (), 0)]
        feed.leave(listener)

    run(test)


def test_there_is_room_for_so_many() -> None:
    async def test(feed: Feed, _: MemoryLooks) -> None:
        first, *_others = (feed.enter([POLICIES]) for _ in range(4))
        with pytest.raises(TooManyListeners):
            feed.enter([POLICIES])
        feed.leave(first)
        feed.leave(first)
        feed.enter([POLICIES])

    run(test)
