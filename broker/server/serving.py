"""Serving until a signal comes."""

import asyncio
import contextlib
import gc
import resource
import signal
from collections.abc import Callable, Sequence
from typing import Final

from broker.server.cluster import Cluster

GARBAGE_S: Final = 60.0
GARBAGE_PARTITIONS_MAX: Final = 1_000  # 30 ms or so
NEVER: Final = 1_000_000


async def serve(make_cluster: Callable[[], Cluster], ports: Sequence[int], ready: Callable[[str], None]) -> None:
    """Start a broker at each port, tell `ready` their addresses, and stop in order at SIGTERM or SIGINT.

    OSError: a port is taken, or the data directory is in use.
    """
    _allow_open_files()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    cluster = make_cluster()
    try:
        await cluster.start(ports)
        keep_collections_short()
        ready(cluster.bootstrap_servers)
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), GARBAGE_S)
            collect_garbage(cluster)
    finally:
        await cluster.stop()


def keep_collections_short() -> None:
    """The interpreter looks for garbage among what is new, and never by itself among all there is: with thousands of
    partitions that takes most of a second, in which nobody is served. What is there now stays."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


def collect_garbage(cluster: Cluster) -> None:
    """Look among all there is, to be called from time to time. With many partitions the few cycles wait."""
    if sum(len(broker.replicas.partitions) for broker in cluster.brokers.values()) <= GARBAGE_PARTITIONS_MAX:
        gc.collect()


def _allow_open_files() -> None:
    """As many as the system lets this process have, as a JVM does: each connection is one, and each segment."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
