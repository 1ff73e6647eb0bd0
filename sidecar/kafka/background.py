"""Ending in time although something hangs: calls of clients can't be interrupted, but they can be left behind."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Run in a thread that doesn't keep the process alive."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever has the future hears of it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=work.__name__, daemon=True).start()
    return future


def give_up(producer: Any) -> None:
    """Close a producer, whatever is under way."""
    producer.purge(in_queue=True, in_flight=True, blocking=False)
    # It may wait for brokers that are away, or fail because it was fenced off: nobody waits with it, or minds.
    in_background(producer.close)


def abandon(status: int) -> NoReturn:
    """End the process now, with what hangs in it. Embedded servers notice and end themselves in order."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
