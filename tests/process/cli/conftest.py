"""Commands as people run them."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def terminal() -> Iterator[None]:
    """Ctrl-C is heard by what a test starts, as in a terminal: a shell has what runs in its background ignore it, and
    so does what that starts.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
