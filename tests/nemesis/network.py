"""A network of this machine's own, with links that can be cut one way or both.

Each node has a network namespace and a cable (a veth pair) to one bridge. The bridge stands in a namespace, too, where
no rule of this machine's firewall meets what passes. The host has a cable of its own, which is never cut:

    broker-1   broker-2   broker-3   sidecar-1   sidecar-2      host
        |          |          |          |           |           |
        +----------+----------+--bridge--+-----------+-----------+

A link is cut where it ends: the sink drops what comes from the source, and neither of them is told.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

PREFIX: Final = "tickover-nemesis"
HOST: Final = "host"
HOST_NUMBER: Final = 254
SUBNETS: Final = range(200, 250)  # the third number of 10.231.n.0/24
COMMAND_TIMEOUT_S: Final = 60.0
NAMESPACES: Final = Path("/run/netns")
DEVICES: Final = Path("/sys/class/net")
MOUNTS: Final = Path("/proc/mounts")
LOOPBACK: Final = "127.0.0.1"


class NetworkUnavailableError(Exception):
    """Links can't be cut here; the text says what is missing."""


class Network(Protocol):
    """Where processes run, and which of them hear each other."""

    can_cut: bool

    def address(self, name: str) -> str:
        """A node's IP address."""

    def prefix(self, name: str) -> tuple[str, ...]:
        """The words before a command that make it run at a node."""

    def cut(self, source: str, sink: str) -> None:
        """Lose what one node sends to another, from now on."""

    def mend(self) -> None:
        """Make all links whole. Twice is harmless."""

    def close(self) -> None:
        """Take the network away, when no process runs in it any more. Twice is harmless."""


class Loopback:
    """Every node at 127.0.0.1: no link can be cut."""

    can_cut = False

    def address(self, name: str) -> str:
        return LOOPBACK

    def prefix(self, name: str) -> tuple[str, ...]:
        return ()

    def cut(self, source: str, sink: str) -> None:
        raise NetworkUnavailableError(f"no link from {source} to {sink} can be cut: all is at {LOOPBACK}")

    def mend(self) -> None:
        """Nothing is cut."""

    def close(self) -> None:
        """Nothing was made."""


class Namespaces:
    """Namespaces of these nodes' names and of this process's id. Raises NetworkUnavailableError."""

    can_cut = True

    def __init__(self, names: Sequence[str]) -> None:
        if reason := missing():
            raise NetworkUnavailableError(reason)
        sweep()
        self._subnet = f"10.231.{_free_subnet()}"
        self._cable = f"tkn{os.getpid():x}"  # the host's end of its own; 15 characters at most
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._names = tuple(names)
        self._switch = self._namespace("switch")
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        return f"{self._subnet}.{HOST_NUMBER if name == HOST else self._numbers[name]}"

    def prefix(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._namespace(name))

    def cut(self, source: str, sink: str) -> None:
        self._filter(sink, "-A", "INPUT", "-s", self.address(source), "-j", "DROP")

    def mend(self) -> None:
        for name in self._names:
            self._filter(name, "-F", "INPUT")

    def close(self) -> None:
        if (DEVICES / self._cable).exists():  # a namespace that is deleted lets go of its end later
            run("ip", "link", "delete", self._cable)
        for name in (*self._names, "switch"):
            if (NAMESPACES / self._namespace(name)).exists():
                run("ip", "netns", "delete", self._namespace(name))

    def _filter(self, name: str, *words: str) -> None:
        run(*self.prefix(name), "iptables", "--wait", *words)

    def _namespace(self, name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{name}"

    def _build(self) -> None:
        run("ip", "netns", "add", self._switch)
        run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for name in self._names:
            namespace = self._namespace(name)
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
            self._plug(name, "eth0", ("netns", namespace), ("-n", namespace))
        self._plug(HOST, self._cable, (), ())

    def _plug(self, name: str, device: str, where: tuple[str, ...], inside: tuple[str, ...]) -> None:
        """A cable from a device of the node to the bridge."""
        end = f"to-{name}"
        run("ip", "link", "add", device, *where, "type", "veth", "peer", "name", end, "netns", self._switch)
        run("ip", "-n", self._switch, "link", "set", end, "master", "bridge", "up")
        run("ip", *inside, "address", "add", f"{self.address(name)}/24", "dev", device)
        run("ip", *inside, "link", "set", device, "up")


def missing() -> str:
    """Reason why links can't be cut here, in words for people; "" when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run it as root, or without cut links (--network none)"
    for program, package in (("ip", "iproute2"), ("iptables", "iptables")):
        if shutil.which(program) is None:
            return f"the command {program} is missing: install {package} (`make system-packages`)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", probe)
        try:
            run("ip", "netns", "exec", probe, "iptables", "--wait", "-L", "INPUT")
        finally:
            run("ip", "netns", "delete", probe)
    except NetworkUnavailableError as error:
        return f"this machine refuses network namespaces: {error}"
    return ""


def sweep() -> None:
    """Take away what a nemesis has left whose process is gone, as one is that was killed: namespaces, small disks."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        if _is_orphan(path.name):
            run("ip", "netns", "delete", path.name)
    for line in MOUNTS.read_text().splitlines():
        source, place, *_ = line.split()
        if source.startswith(f"{PREFIX}-") and _is_orphan(source):
            unmount(Path(place))


def _is_orphan(name: str) -> bool:
    return not Path("/proc", name.removeprefix(f"{PREFIX}-").partition("-")[0]).exists()


def mount(place: Path, size_bytes: int) -> None:
    """A small disk of its own, in memory, at this directory. Raises NetworkUnavailableError."""
    run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", f"{PREFIX}-{os.getpid()}-disk", str(place))


def unmount(place: Path) -> None:
    """Away with it, whoever still has a file open there."""
    run("umount", "--lazy", str(place))


def run(*command: str) -> str:
    """Run a command and return its output. Raises NetworkUnavailableError with its complaint."""
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S
    )
    if result.returncode:
        raise NetworkUnavailableError(f"{' '.join(command)}: {result.stderr.strip() or result.returncode}")
    return result.stdout


def _free_subnet() -> int:
    routes = run("ip", "-4", "route", "show", "table", "all")
    for step in range(len(SUBNETS)):  # by its id, so that two that start at once look in different places first
        number = SUBNETS.start + (os.getpid() + step) % len(SUBNETS)
        if f"10.231.{number}." not in routes:
            return number
    raise NetworkUnavailableError(f"all of 10.231.{SUBNETS.start}.0 to 10.231.{SUBNETS.stop - 1}.0 are in use")
