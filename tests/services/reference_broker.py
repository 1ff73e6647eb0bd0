"""The reference broker within the test process: its event loop in a thread of its own, so that clients can block."""

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from broker.cluster.settings import BrokerSettings
from broker.server.cluster import Chance, Cluster

DEADLINE_S = 240.0

Result = TypeVar("Result")


class ReferenceBroker:
    """One cluster. `start` and `stop` may be repeated: what is in `directory` is there again, at the same ports."""

    def __init__(self, directory: Path, brokers: int = 1, racks: Sequence[str] = (), **settings: Any) -> None:
        self.directory = directory
        self.racks = racks
        self.settings = BrokerSettings(**settings)
        self.ports = [0] * brokers
        self.cluster: Cluster
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap_servers

    def start(self) -> "ReferenceBroker":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reference-broker", daemon=True)
        self._thread.start()
        self.run(self._start())
        return self

    def stop(self) -> None:
        if self._thread is None:
            return
        self.run(self.cluster.stop())
        self.run(self._end_tasks())
        self._end_loop()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do this in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def inspect(self, look: Any) -> Any:
        """Result of `look(cluster)`, called in the broker's loop."""

        async def call() -> Any:
            return look(self.cluster)

        return self.run(call())

    async def _start(self) -> None:
        chance = Chance(lambda: str(uuid.uuid4()), random.Random(1).randrange)
        self.cluster = Cluster(self.directory, self.settings, lambda: time.time() * 1000, chance)
        await self.cluster.start(self.ports, self.racks)
        self.ports = [int(address.rpartition(":")[2]) for address in self.bootstrap.split(",")]

    async def _end_tasks(self) -> None:
        """End tasks of connections that were accepted while the broker stopped, as `asyncio.run` does."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which transports close their sockets

    def _end_loop(self) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self._thread = None
