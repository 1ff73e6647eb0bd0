"""One to three brokers in one process, and their controller: started, served, stopped."""

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.cluster.broker import Broker
from broker.cluster.cluster_metadata import BrokerRegistration, ClusterMetadata, MetadataChanges
from broker.cluster.controller import Controller
from broker.cluster.metadata_store import MetadataStore
from broker.cluster.settings import BrokerSettings
from broker.protocol.messages import preload
from broker.server.server import Server

LOCK: Final = ".lock"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chance:
    """Where ids and choices come from: a new id as text, a number below n."""

    new_id: Callable[[], str]
    draw: Callable[[int], int]


class Cluster:
    """Brokers 1, 2 ... with their data below `directory`, which one process may use at a time. `clock`: wall-clock
    time in ms."""

    def __init__(self, directory: Path, settings: BrokerSettings, clock: Callable[[], float], chance: Chance) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)
        self._store = MetadataStore(directory)
        self.metadata = self._store.load() or ClusterMetadata(chance.new_id().replace("-", "")[:22])
        self.controller = Controller(self.metadata, chance.new_id, chance.draw, self._save, self._store.sync)
        self.brokers: dict[int, Broker] = {}
        self.servers: dict[int, Server] = {}

    @property
    def bootstrap_servers(self) -> str:
        """For clients."""
        return ",".join(f"{self._settings.host}:{server.port}" for _, server in sorted(self.servers.items()))

    async def start(self, ports: Sequence[int], racks: Sequence[str | None] = ()) -> None:
        """One broker for each port; port 0 takes any that is free. OSError: a port is taken."""
        preload()
        registrations = []
        for broker_id, port in enumerate(ports, start=1):
            rack = racks[broker_id - 1] if racks else None
            registrations.append((await self._listen(broker_id, port, rack), self.brokers[broker_id]))
        self.controller.register(*registrations)
        for broker in self.brokers.values():
            broker.start()

    async def start_broker(self, broker_id: int, port: int = 0, rack: str | None = None) -> None:
        """One more broker, or one that was stopped."""
        registration = await self._listen(broker_id, port, rack)
        self.controller.register((registration, self.brokers[broker_id]))
        self.brokers[broker_id].start()

    async def stop_broker(self, broker_id: int) -> None:
        """Let it go: others lead what it led, who waited for it as the leader is told so, then its logs are closed."""
        server, broker = self.servers[broker_id], self.brokers[broker_id]
        self.controller.shut_down(broker_id)
        await server.drain()
        self.servers.pop(broker_id, None)
        self.brokers.pop(broker_id, None)
        self.controller.fence(broker_id)
        await server.stop()
        broker.stop()

    async def kill_broker(self, broker_id: int) -> None:
        """End a broker without a word, as by a signal: nothing is written down, its connections break. Others lead as
        soon as the controller has noticed, which is at once."""
        server, broker = self.servers.pop(broker_id), self.brokers.pop(broker_id)
        broker.halt()
        await server.stop()
        self.controller.fence(broker_id)

    async def _listen(self, broker_id: int, port: int, rack: str | None) -> BrokerRegistration:
        directory = self._directory / f"broker-{broker_id}"
        broker = Broker(broker_id, self.controller, self._settings, directory, self._clock, self.brokers)
        server = Server(broker, self._settings.host, port)
        await server.start()
        self.brokers[broker_id], self.servers[broker_id] = broker, server
        _log.info("broker %d listens at %s:%d", broker_id, self._settings.host, server.port)
        return BrokerRegistration(broker_id, self._settings.host, server.port, rack)

    async def stop(self) -> None:
        """Serve no more and write everything down. Twice is harmless."""
        for server in self.servers.values():
            await server.stop()
        for broker in self.brokers.values():
            broker.stop()
        if self.brokers:
            self._count_change()
            self._store.save(self.metadata)
        self._store.close()
        self.servers.clear()
        self.brokers.clear()
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _save(self, changes: MetadataChanges) -> None:
        self._count_change()
        self._store.append(self.metadata, changes)

    def _count_change(self) -> None:
        known = self.metadata
        known.quorum.append(known.controller_id, (one.broker_id for one in known.alive), int(self._clock()))


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise OSError(error.errno, f"{directory} is used by another broker process") from None
    return descriptor
