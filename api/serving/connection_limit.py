"""How many connections a listener has, and which of them is closed for a new one.

A connection waits while it is its client's turn: to send a request, to read the answer, to close; in between it works.
Where the listener or one address has as many as it may, the one that has waited longest is closed: who says nothing, or
little, keeps nobody out. Only when all of them work the new one is refused.
"""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address


class Accepted:
    """One connection: whose it is, and how it is closed."""

    __slots__ = ("close", "network")

    def __init__(self, network: str, close: Callable[[], object]) -> None:
        self.network = network
        self.close = close


class ConnectionLimit:
    """At most `total` connections, and `per_address` of each address."""

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._all: dict[str, set[Accepted]] = {}
        self._count = 0
        # In the order in which they began to wait.
        self._waiting: dict[Accepted, None] = {}
        self._waiting_of: dict[str, dict[Accepted, None]] = {}

    def enter(self, network: str, close: Callable[[], object]) -> Accepted | None:
        """The new connection, which waits; None: it is refused."""
        waiting_of = self._waiting_of.get(network, {})
        if len(self._all.get(network, ())) >= self._per_address and not self._close_oldest(waiting_of):
            return None
        if self._count >= self._total and not self._close_oldest(self._waiting):
            return None
        one = Accepted(network, close)
        self._all.setdefault(network, set()).add(one)
        self._count += 1
        self.wait(one)
        return one

    def wait(self, one: Accepted) -> None:
        """From now on this connection waits for its client, behind those that wait already."""
        if one in self._all.get(one.network, ()):
            self._waiting.setdefault(one)
            self._waiting_of.setdefault(one.network, {}).setdefault(one)

    def work(self, one: Accepted) -> None:
        """From now on we work for this connection: it isn't closed for another."""
        self._waiting.pop(one, None)
        of_network = self._waiting_of.get(one.network, {})
        of_network.pop(one, None)
        if not of_network:
            self._waiting_of.pop(one.network, None)

    def leave(self, one: Accepted) -> None:
        """Forget a connection that is closed. Twice is harmless."""
        self.work(one)
        of_network = self._all.get(one.network, set())
        if one not in of_network:
            return
        of_network.remove(one)
        self._count -= 1
        if not of_network:
            del self._all[one.network]

    def _close_oldest(self, waiting: dict[Accepted, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.close()
        return True


def plain_address(host: str) -> str:
    """The address of a client; one with IPv4 comes to a listener on `::` as `::ffff:192.0.2.1`."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped) if isinstance(address, IPv6Address) and address.ipv4_mapped else host


def network_of(host: str) -> str:
    """Name that one machine's address is counted by; of IPv6 the network that it may choose its addresses from."""
    try:
        address = ip_address(plain_address(host.partition("%")[0]))
    except ValueError:
        return f"address {host}"
    if isinstance(address, IPv6Address):
        return f"network {int(address) >> 64:x}"
    return f"address {address}"
