"""A real client of Redis whose connection may break at any command: ahead of it, or before its answer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from sidecar.overflow import scripts as overflow_scripts
from sidecar.overflow.connection import Client, script_hash

GROWING = frozenset({"ADD", "APPLY", "REDO"})  # a server without memory refuses these


def scripts() -> dict[str, str]:
    """All that there are, by name."""
    found = vars(overflow_scripts).items()
    return {name: text for name, text in found if name[0].isalpha() and str(text).lstrip().startswith("--")}


class Faults(Protocol):
    """Decides what becomes of a command."""

    def meddle(self) -> None:
        """Somebody else may do something ahead of it."""

    def breaks(self) -> bool:
        """Whether the connection breaks here."""

    def is_full(self) -> bool:
        """Whether the server has no memory left."""

    def answered(self, script: str, arguments: Sequence[Any], answer: Any) -> None:
        """Take note of a script's arguments and its answer, of which the caller may never hear."""


class FailingClient:
    """One process's client. Nothing is sent again: a caller sees what a timeout shows. The server knows all scripts."""

    def __init__(self, client: Client, faults: Faults) -> None:
        self._client = client
        self._faults = faults
        self._names = {script_hash(text): name for name, text in scripts().items()}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return self._call(lambda: getattr(self._client, name)(*arguments, **options))

        return call

    def evalsha(self, script: str, keys_count: int, *rest: Any) -> Any:
        self._refuse([script])

        def run() -> Any:
            answer = self._client.evalsha(script, keys_count, *rest)
            self._faults.answered(self._names[script], rest[keys_count:], answer)
            return answer

        return self._call(run)

    def pipeline(self, transaction: bool) -> "Pipeline":
        assert not transaction
        return Pipeline(self)

    def execute(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Commands sent at once: of those the server gets all, or the first ones."""
        self._refuse([script for _, script, *_ in commands])
        self._faults.meddle()
        replies = []
        for command in commands:
            _, script, keys_count, *rest = command
            if self._faults.breaks():
                raise RedisTimeoutError("the connection broke between two commands")
            (answer,) = self._client.pipeline(transaction=False).execute_command(*command).execute(raise_on_error=False)
            self._faults.answered(self._names[script], rest[keys_count:], answer)
            replies.append(answer)
        if self._faults.breaks():
            raise RedisTimeoutError("the answers were lost")
        return replies

    def _call(self, run: Callable[[], Any]) -> Any:
        self._faults.meddle()
        if self._faults.breaks():
            raise RedisTimeoutError("the connection broke ahead of a command")
        answer = run()
        if self._faults.breaks():
            raise RedisTimeoutError("the answer was lost")
        return answer

    def _refuse(self, scripts: Sequence[str]) -> None:
        if any(self._names[script] in GROWING for script in scripts) and self._faults.is_full():
            raise ResponseError("OOM command not allowed when used memory > 'maxmemory'.")


class Pipeline:
    """Commands that wait to be sent at once."""

    def __init__(self, client: FailingClient) -> None:
        self._client = client
        self._commands: list[Sequence[Any]] = []

    def execute_command(self, *command: Any) -> None:
        self._commands.append(command)

    def execute(self, raise_on_error: bool) -> list[Any]:
        assert not raise_on_error
        return self._client.execute(self._commands)
