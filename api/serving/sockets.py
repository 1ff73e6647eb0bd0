"""How the API is listened for, and the sockets: its own, and that of the probes with the file that says where it is."""

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from api.serving.certificate import Certificate
from api.serving.connection import Deadlines, log
from api.serving.listener import BACKLOG, UNDER_WAY_MAX
from sidecar.settings.api import ApiSettings

EVERYWHERE: Final = "::"
EVERYWHERE_IPV4: Final = "0.0.0.0"
LOOPBACK: Final = "127.0.0.1"
PORT_SETTING: Final = "api.port (TICKOVER_API__PORT)"
PROBE_PORT_SETTING: Final = "api.probe_port (TICKOVER_API__PROBE_PORT)"


class BindError(OSError):
    """The address can't be listened on; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Listening:
    """How the API is listened for. Without a `probe_port` there is no listener for probes only."""

    probe_host: str = "127.0.0.1"
    probe_port: int | None = None
    probe_file: str = ""
    connections_per_address: int = 256
    certificate: Certificate | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    under_way_max: int = UNDER_WAY_MAX


def listening_of(settings: ApiSettings) -> Listening:
    """Read from the settings how the API is listened for. Raises `AccessConfigError`."""
    tls = settings.tls
    return Listening(
        settings.probe_host,
        settings.probe_port or (0 if settings.probe_file else None),
        settings.probe_file,
        settings.connections_per_address,
        Certificate(tls.certificate_file, tls.key_file) if tls.certificate_file else None,
    )


@dataclass(frozen=True, slots=True)
class Sockets:
    """Sockets that listen. `probe_file` says where the probes' one does, and goes with it; "": none."""

    api: socket.socket
    probes: socket.socket | None
    siblings: socket.socket | None = None
    probe_file: str = ""

    @property
    def all(self) -> tuple[socket.socket, ...]:
        """All that there are, in the order of a server's listeners."""
        return tuple(one for one in (self.api, self.probes, self.siblings) if one is not None)

    def close(self) -> None:
        """Twice is harmless."""
        for one in self.all:
            one.close()
        if self.probe_file:
            with suppress(OSError):
                Path(self.probe_file).unlink()


def open_sockets(host: str, port: int, listening: Listening) -> Sockets:
    """Listen from now on: who connects waits in a backlog. Raises `BindError`."""
    api = _listening(host, port)
    if listening.probe_port is None:
        return Sockets(api, None)
    try:
        probes = _listening(listening.probe_host, listening.probe_port, PROBE_PORT_SETTING)
    except BindError:
        api.close()
        raise
    _write_place(listening.probe_file, listening.probe_host, probes.getsockname()[1])
    return Sockets(api, probes, probe_file=listening.probe_file)


def _write_place(file: str, host: str, port: int) -> None:
    """Where a health check asks, whatever the settings said and whoever said it: `127.0.0.1 8231`."""
    if not file:
        return
    host = LOOPBACK if host in (EVERYWHERE, EVERYWHERE_IPV4) else host
    try:
        Path(file).write_text(f"{host} {port}\n", encoding="ascii")
    except OSError as error:
        log.warning(
            "api.probe_file can't be written: no health check finds this process",
            extra={"file": file, "error": error.strerror},
        )


def _listening(host: str, port: int, setting: str = PORT_SETTING) -> socket.socket:
    try:
        if host == EVERYWHERE:
            return _unblocking(_listening_everywhere(port))
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, address = addresses[0][0], addresses[0][4]
        return _unblocking(socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG))
    except OSError as error:
        way_out = f"; name another port by {setting}" if error.errno == errno.EADDRINUSE else ""
        raise BindError(f"the API can't listen on {host} port {port}: {error.strerror or error}{way_out}") from error


def _unblocking(listening: socket.socket) -> socket.socket:
    """The socket, whose `accept` never waits: of processes that share it only one gets the client that all see."""
    listening.setblocking(False)
    return listening


def _listening_everywhere(port: int) -> socket.socket:
    """On IPv6 and IPv4; on IPv4 alone where the kernel has no IPv6, so that one setting does for every cluster."""
    if socket.has_dualstack_ipv6():
        return socket.create_server((EVERYWHERE, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)
