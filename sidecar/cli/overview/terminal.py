"""The terminal while a screen is refreshed: keys come one by one, and q, Ctrl-C or SIGTERM end it as it was before."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = b"qQ\x03\x04"
KEYS_MAX: Final = 64  # read at once


class Ended(Exception):
    """The user has asked for the end."""


@contextmanager
def keys() -> Iterator[None]:
    """Take keys without Enter, and SIGTERM as `Ended`; afterwards all is as it was."""
    before = signal.signal(signal.SIGTERM, _end)
    file = sys.stdin.fileno() if sys.stdin.isatty() else -1
    modes = termios.tcgetattr(file) if file >= 0 else []
    try:
        if file >= 0:
            tty.setcbreak(file)
        yield
    except KeyboardInterrupt:
        raise Ended from None
    finally:
        if file >= 0:
            termios.tcsetattr(file, termios.TCSADRAIN, modes)
        signal.signal(signal.SIGTERM, before)


def wait(seconds: float) -> None:
    """Wait so long, or for a key. Raises Ended when it is one that ends."""
    file = sys.stdin.fileno() if sys.stdin.isatty() else -1
    ready, _, _ = select.select([file] if file >= 0 else [], [], [], seconds)
    if ready:
        read = os.read(file, KEYS_MAX)
        if not read or any(key in ENDING for key in read):
            raise Ended


def _end(number: int, _: FrameType | None) -> None:
    raise Ended
