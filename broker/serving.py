"""Serving until a signal comes."""

import asyncio
import resource
import signal
from collections.abc import Callable, Sequence

from broker.cluster import Cluster


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
        ready(cluster.bootstrap_servers)
        await stopped.wait()
    finally:
        await cluster.stop()


def _allow_open_files() -> None:
    """As many as the system lets this process have, as a JVM does: each connection is one, and each segment."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
