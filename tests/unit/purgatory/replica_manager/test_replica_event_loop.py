"""A replica manager in an event loop, as a broker has it: one driver, no thread, on the real clock."""

import asyncio
from typing import Any

from purgatory.delayed.delayed_fetch import FetchParams, FetchPartition
from purgatory.errors import Errors
from purgatory.replica_manager.partition_reader import ReadingSettings
from purgatory.replica_manager.replica_manager import ReplicaManager, Surroundings
from purgatory.timer.clock import hi_res_clock_ms
from purgatory.timer.reaper import TimerDriver
from purgatory.timer.system_timer import SystemTimer
from tests.unit.replica_world import KEY, SIZE, Batch, Brokers, assignment, new_partition


def broker() -> ReplicaManager:
    metadata = Brokers()
    manager = ReplicaManager(
        1, Surroundings(hi_res_clock_ms, SystemTimer, metadata, lambda key, proposal: None, ReadingSettings())
    )
    manager.host(new_partition(metadata))
    manager.become(KEY, assignment(replicas=(1, 2)))
    return manager


async def use(manager: ReplicaManager) -> tuple[Any, Any, Any, float]:
    """A fetch that expires, a produce that expires, then a fetch at the end that data completes."""
    loop = asyncio.get_running_loop()
    driver = TimerDriver(loop.call_later)
    for purgatory in manager.purgatories:
        driver.drive(purgatory)
    empty, late, woken = loop.create_future(), loop.create_future(), loop.create_future()
    started_ms = hi_res_clock_ms()
    manager.fetch_messages(FetchParams(max_wait_ms=30), [(KEY, FetchPartition(0))], empty.set_result)
    fetched = await asyncio.wait_for(empty, 60)
    elapsed_ms = hi_res_clock_ms() - started_ms
    manager.append_records(20, -1, {KEY: [Batch()]}, late.set_result)
    manager.try_complete_actions()
    produced = await asyncio.wait_for(late, 60)
    manager.become(KEY, assignment(epoch=1, partition_epoch=1))  # alone now: the record is committed
    manager.fetch_messages(FetchParams(max_wait_ms=60_000), [(KEY, FetchPartition(1))], woken.set_result)
    loop.call_soon(manager.append_records, 1000, 1, {KEY: [Batch()]}, lambda answer: None)
    loop.call_soon(manager.try_complete_actions)
    data = await asyncio.wait_for(woken, 60)
    driver.stop()
    return fetched, produced, data, elapsed_ms


def test_requests_wait_expire_and_complete() -> None:
    fetched, produced, data, elapsed_ms = asyncio.run(use(broker()))
    assert fetched[0][1].size == 0
    assert elapsed_ms >= 28  # 30, less the clock's millisecond and the tick's
    assert (produced[KEY].error, produced[KEY].base_offset) == (Errors.REQUEST_TIMED_OUT, 0)
    assert (data[0][1].size, data[0][1].high_watermark) == (SIZE, 2)
