"""Clients that follow events of a sidecar: they must neither hold up its end nor be cut off by it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import httpx

from tests.services.sidecar_process import ANSWER_S, Sidecar

STREAMS: Final = ("/v1/events", "/ui/events?event=policies&event=pauses") * 2


@contextmanager
def following_events(sidecar: Sidecar) -> Iterator[None]:
    """Streams that are open in the block, which ends the sidecar. Raises httpx.RemoteProtocolError of one that was cut
    off: it lacks its last chunk.
    """
    with ExitStack() as clients:
        answers = [clients.enter_context(httpx.stream("GET", sidecar.url + path, timeout=ANSWER_S)) for path in STREAMS]
        streams = [answer.iter_lines() for answer in answers]
        for lines in streams:
            assert "event: reset" in lines, "it doesn't begin"
        yield
        for lines in streams:
            assert "event: reset" not in lines, "it has begun anew"
