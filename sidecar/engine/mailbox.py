"""The engine's mailbox: how other threads ask it to do something between two turns."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, Queue
from typing import Any, Final

COMMANDS_MAX: Final = 1_000
COMMANDS_PER_TURN_MAX: Final = 16


class EngineError(Exception):
    """The engine can't go on. The process ends with status 1 and starts over; nothing is restarted in place."""


class Mailbox:
    """Bounded. `put` is for any thread, the rest for the engine's."""

    def __init__(self) -> None:
        self._commands: Queue[tuple[Callable[[Any], Any], Future[Any]]] = Queue(COMMANDS_MAX)

    def put(self, command: Callable[[Any], Any]) -> Future[Any]:
        """Leave a command. Raises queue.Full when too many wait."""
        future: Future[Any] = Future()
        self._commands.put_nowait((command, future))
        return future

    def answer(self, engine: Any) -> None:
        """Do what some of the commands ask for.

        A future that its owner cancelled is skipped: a caller that went away can't harm the engine.
        """
        for _ in range(COMMANDS_PER_TURN_MAX):
            try:
                command, future = self._commands.get_nowait()
            except Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(command(engine))
            except Exception as error:  # noqa: BLE001 - the sender's command failed, not the engine: the sender hears of it
                future.set_exception(error)

    def refuse(self) -> None:
        """Nobody answers any more: who waits for an answer must not wait until its own time is up."""
        while True:
            try:
                _, future = self._commands.get_nowait()
            except Empty:
                return
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError("the engine has ended"))
