"""A TCP proxy in front of a real Redis: replies that are lost, connections that are cut, answers that take their time.

One thread forwards everything. Requests are looked through only for the names of their commands:

    *<words>\r\n $<length>\r\n <word> \r\n ...
"""

import selectors
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from sidecar.embedded.child import free_port

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.05
_CONNECT_S = 2.0


@dataclass(slots=True, eq=False)
class _Link:
    """A client's connection and ours to the server."""

    client: socket.socket
    server: socket.socket
    unread: bytearray = field(default_factory=bytearray)
    losing: bool = False  # the next answer is lost, and with it the connection


class RedisProxy:
    """In front of the Redis at a port of this machine. What it does wrong is set by attributes, at any time."""

    def __init__(self, server_port: int) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.lose_each_once = False  # the first answer to each kind of command never arrives
        self.lost: Counter[str] = Counter()  # by kind of command
        self.seen: Counter[str] = Counter()
        self.delay_s = 0.0
        self.server_port = server_port
        self._links: set[_Link] = set()
        self._selector = selectors.DefaultSelector()
        self._cutting = threading.Event()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._thread = threading.Thread(target=self._run, name="redis-proxy", daemon=True)

    def start(self) -> "RedisProxy":
        """Forward from now on."""
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close everything. Twice is harmless."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._cut_all()
        self._listener.close()
        self._selector.close()

    def cut(self) -> None:
        """Close every connection, whatever is on its way."""
        self._cutting.set()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(_LOOK_S):
                if key.data is None:
                    self._accept()
                elif key.data in self._links:
                    self._forward(key.data, key.fileobj is key.data.client)
            if self._cutting.is_set():
                self._cutting.clear()
                self._cut_all()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port), _CONNECT_S)
        except OSError:  # the server is away: so is the connection
            client.close()
            return
        link = _Link(client, server)
        self._links.add(link)
        for end in (client, server):
            end.settimeout(_CONNECT_S)
            self._selector.register(end, selectors.EVENT_READ, link)

    def _forward(self, link: _Link, from_client: bool) -> None:
        source, sink = (link.client, link.server) if from_client else (link.server, link.client)
        try:
            content = source.recv(_CHUNK_BYTES)
            if not content or (link.losing and not from_client):
                self._close(link)
                return
            if from_client:
                self._look_at(link, content)
            elif self.delay_s:
                time.sleep(self.delay_s)
            sink.sendall(content)
        except OSError:
            self._close(link)

    def _look_at(self, link: _Link, content: bytes) -> None:
        link.unread += content
        for kind in _commands(link.unread):
            self.seen[kind] += 1
            if self.lose_each_once and not self.lost[kind]:
                self.lost[kind] += 1
                link.losing = True

    def _cut_all(self) -> None:
        for link in list(self._links):
            self._close(link)

    def _close(self, link: _Link) -> None:
        self._links.discard(link)
        for end in (link.client, link.server):
            with suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()


def _commands(unread: bytearray) -> list[str]:
    """Kinds of the whole commands at the front, which are taken away: name, and for scripts which script."""
    kinds = []
    while (end := _end_of_command(unread)) is not None:
        words, used = end
        del unread[:used]
        name = words[0].upper().decode(errors="replace")
        kinds.append(f"{name} {words[1][:8].decode(errors='replace')}" if name.startswith("EVAL") else name)
    return kinds


def _end_of_command(unread: bytearray) -> tuple[list[bytes], int] | None:
    """The first two words of the first command, and its length; None when it isn't whole yet."""
    line = unread.find(b"\r\n")
    if line < 0:
        return None
    count, at, words = int(unread[1:line]), line + 2, []
    for number in range(count):
        line = unread.find(b"\r\n", at)
        if line < 0:
            return None
        length = int(unread[at + 1 : line])
        at = line + 2 + length + 2
        if at > len(unread):
            return None
        if number < 2:
            words.append(bytes(unread[line + 2 : line + 2 + length]))
    return words, at
