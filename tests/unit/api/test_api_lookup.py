"""Look-ups off the event loop: the long ones one at a time, and only so many of them."""

import asyncio
import threading

import pytest

from api.lookup import ALONE_WAITING_MAX, LookUp
from sidecar.lookup.query import LookUpUnavailable
from tests.unit.api_world import MemoryHeld

SOON_S = 30.0


def test_long_look_ups_run_one_at_a_time_and_only_so_many_wait() -> None:
    lookup, may_end, begun = LookUp(MemoryHeld()), threading.Event(), threading.Semaphore(0)
    running: list[int] = []
    most: list[int] = []

    def work() -> str:
        running.append(1)
        most.append(len(running))
        begun.release()
        assert may_end.wait(SOON_S)
        running.pop()
        return "told"

    async def ask() -> None:
        waiting = [asyncio.create_task(lookup.run_alone(work)) for _ in range(ALONE_WAITING_MAX)]
        assert await asyncio.to_thread(begun.acquire, timeout=SOON_S)
        with pytest.raises(LookUpUnavailable, match="under way"):
            await lookup.run_alone(work)
        assert await lookup.run(lambda: "short") == "short"
        waiting[0].cancel()  # who asked went away: its work goes on, and nothing runs beside it
        may_end.set()
        assert await asyncio.gather(*waiting[1:]) == ["told"] * (ALONE_WAITING_MAX - 1)
        assert await lookup.run_alone(work) == "told"

    try:
        asyncio.run(ask())
    finally:
        may_end.set()
        lookup.stop()
    assert set(most) == {1}
