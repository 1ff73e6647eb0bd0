"""A server in a child process that ends with this one, however this one ends; and ports for such servers."""

import errno
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

# The shell's child reads a pipe that only we hold open; when we die, however we die, it reads the end and
# signals the server. `exec` makes the server take the shell's process id. PDEATHSIG would not do: it is sent
# when the starting thread ends, and that need not be the main thread. It holds nothing else open: whoever reads what
# the server prints sees its end.
_GUARDED: Final = 'exec 3<&0; (cat <&3; kill -{signal} $$) >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'

# Below the range from which the system gives ports to outgoing connections: a client that keeps trying to
# reach a stopped server inside that range can connect to itself and so take the port away for good.
_PORTS: Final = range(20_000, 32_000)
_PORT_ATTEMPTS_MAX: Final = 100
_given: Final[set[int]] = set()  # by this process: a port may be given long before somebody listens on it


class Child:
    """A running server with its guard. `orphaned` is the signal that it gets when this process dies.

    Its standard error goes where its standard output goes, or to `errors`.
    """

    # tidy: the options of the process
    def __init__(
        self,
        command: Sequence[str],
        output: int | IO[bytes],
        errors: int | IO[bytes] = subprocess.STDOUT,
        *,
        orphaned: signal.Signals = signal.SIGKILL,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        kept_files: Sequence[int] = (),
    ) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", _GUARDED.format(signal=int(orphaned)), "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            cwd=directory,
            env=environment,
            pass_fds=kept_files,
            # Its own group: Ctrl-C reaches us, and we stop the server when nobody needs it any more.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes] | None:
        """Pipe with what the server prints; None where `output` was no pipe."""
        return self._process.stdout

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended by itself."""
        return self._process.poll() is not None

    def stop(self, timeout_s: float) -> bool:
        """SIGTERM; False when it takes longer than this and is killed."""
        self._process.send_signal(signal.SIGTERM)
        is_orderly = True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            is_orderly = False
        self.kill()
        return is_orderly

    def kill(self) -> None:
        """SIGKILL for the server and its guard."""
        with suppress(ProcessLookupError):  # no group: both are gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def free_port() -> int:
    """A loopback port that nobody listens on and that this process was not given before, outside the range of
    outgoing connections. Raises OSError when there is none."""
    for port in random.sample(_PORTS, _PORT_ATTEMPTS_MAX):
        with socket.socket() as probe:
            if port not in _given and probe.connect_ex(("127.0.0.1", port)) != 0:
                _given.add(port)
                return port
    raise OSError(errno.EADDRINUSE, "no free port found")
