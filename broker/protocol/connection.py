"""One client's connection: frames in, one request at a time, answers out in the order of the requests.

The socket writes into memory that a log may append as it is. A client that sends faster than it is answered, or reads
slower than it asks, is not read from until it has caught up: a connection holds one frame, one answer and what the
operating system buffers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import BinaryIO, Final, cast

from broker.log.file import FileRegion, Part

SIZE_BYTES: Final = 4
RECEIVE_BYTES: Final = 65_536

_log = logging.getLogger(__name__)

Handle = Callable[[bytearray, str], Awaitable[Sequence[Part] | None]]
"""Answers a frame (without its size) of a client (host:port), in parts. None: there is no answer."""


class CloseConnection(Exception):
    """The client is to be told nothing more."""


class Connection(asyncio.BufferedProtocol):
    """The protocol of one connection. `handle` answers a frame; `frame_bytes_max` is the largest that is taken;
    `is_refused` ends it at once."""

    def __init__(
        self, handle: Handle, frame_bytes_max: int, closed: Callable[["Connection"], None], *, is_refused: bool = False
    ) -> None:
        self._handle = handle
        self._frame_bytes_max = frame_bytes_max
        self._closed = closed
        self._is_refused = is_refused
        self._received = bytearray(RECEIVE_BYTES)
        self._filled = 0
        self._large: bytearray | None = None
        self._frames: deque[bytearray] = deque()
        self._arrived = asyncio.Event()
        self._sending_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]
        self._is_made = False
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._is_made = True
        if self._is_refused:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._task.cancel()
        self._closed(self)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not read; of what is sent from a file, all."""
        return self._transport.get_write_buffer_size() + self._sending_bytes if self._is_made else 0

    def close(self) -> None:
        """End it, or as soon as it is made; what was asked and isn't answered stays so. Harmless when repeated."""
        if not self._is_made:
            self._is_refused = True
            return
        self._task.cancel()
        self._transport.abort()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return memoryview(self._received)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._large is None:
            self._take_frames()
        elif self._filled == len(self._large):
            self._frames.append(self._large)
            self._large, self._filled = None, 0
        if self._frames:
            self._transport.pause_reading()
            self._arrived.set()

    def _take_frames(self) -> None:
        """Cut whole frames from what was received, and give a large one memory of its own."""
        position, view = 0, memoryview(self._received)
        while self._filled - position >= SIZE_BYTES:
            size = int.from_bytes(view[position : position + SIZE_BYTES], "big", signed=True)
            if not 0 < size <= self._frame_bytes_max:
                _log.warning("%s sent a frame of %d bytes: closed", self.peer, size)
                self.close()
                return
            start, end = position + SIZE_BYTES, position + SIZE_BYTES + size
            if end > self._filled:
                if SIZE_BYTES + size > RECEIVE_BYTES:
                    rest = self._filled - start
                    self._large = bytearray(size)
                    self._large[:rest] = view[start : self._filled]
                    self._filled = rest
                    return
                break
            self._frames.append(bytearray(view[start:end]))
            position = end
        rest = self._filled - position
        if position:
            self._received[:rest] = self._received[position : self._filled]
        self._filled = rest

    # Answering

    async def _serve(self) -> None:
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._frames:
                    await self._answer(self._frames.popleft())
                    if self._frames:
                        await asyncio.sleep(0)  # others have their turn
                self._transport.resume_reading()
        except CloseConnection as reason:
            _log.warning("%s: %s: closed", self.peer, reason)
            self._transport.close()
        except Exception:  # noqa: BLE001 - told to the log; the client can only try again
            _log.exception("%s: a request could not be answered", self.peer)
            self._transport.abort()

    async def _answer(self, frame: bytearray) -> None:
        parts = await self._handle(frame, self.peer)
        if parts is None:
            return
        ahead = [sum(map(len, parts)).to_bytes(SIZE_BYTES, "big")]
        for part in parts:
            if isinstance(part, FileRegion):
                self._transport.write(b"".join(ahead))
                ahead.clear()
                await self._send(part)
            else:
                ahead.append(part)
        self._transport.write(b"".join(ahead))
        await self._writable.wait()

    async def _send(self, region: FileRegion) -> None:
        """From the file to the socket, past this process. Waits for the client to read."""
        loop, file = asyncio.get_running_loop(), cast(BinaryIO, region.file)  # its descriptor is all that is used
        self._sending_bytes = len(region)
        try:
            sent = await loop.sendfile(self._transport, file, region.position, len(region), fallback=False)
        except (ConnectionError, RuntimeError) as error:
            raise CloseConnection(f"it left while it was sent records ({error})") from error
        self._sending_bytes = 0
        if sent < len(region):
            raise CloseConnection("the log was cut while it was sent")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
