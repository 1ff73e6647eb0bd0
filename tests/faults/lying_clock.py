"""A process whose wall clock can be set while it runs; lying_clock.c says how."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("lying_clock.c")
_NANOSECONDS = 1_000_000_000
_INT64_BYTES = 8


class LyingClock:
    """Run a command with `prefix` before it, and `set` its wall clock."""

    def __init__(self, directory: Path) -> None:
        directory = directory.absolute()
        self._library = directory / "lying_clock.so"
        self._lie = directory / "lying_clock"
        self._lie.write_bytes(bytes(_INT64_BYTES))

    @property
    def prefix(self) -> tuple[str, ...]:
        """Compiled when it is first needed. Raises FileNotFoundError without a compiler."""
        if not self._library.exists():
            command = ["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE)]
            subprocess.run([*command, "-ldl"], check=True, timeout=60)
        return "env", f"LD_PRELOAD={self._library}", f"LYING_CLOCK={self._lie}"

    def set(self, ahead_s: float) -> None:
        """How far its wall clock is ahead of the truth from now on."""
        with self._lie.open("r+b") as file:
            file.write(int(ahead_s * _NANOSECONDS).to_bytes(_INT64_BYTES, "little", signed=True))
