"""The process as it tells of itself over REST: its settings in force, and what the doctor finds around it."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from sidecar.doctor.doctor import Finding, examine, wall_ms
from sidecar.doctor.facts import Examined
from sidecar.kafka.background import in_background
from sidecar.settings.settings import Settings

FRESH_S: Final = 30.0  # for so long what was found is told again: each look makes clients of Kafka and Redis


class About:
    """`settings` may be swapped as a whole while it runs. `examine` is for one event loop."""

    def __init__(
        self,
        settings: Settings,
        look: Callable[[Settings], list[Finding]] = examine,
        monotonic_s: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.settings = settings
        self._look = look
        self._monotonic_s = monotonic_s
        self._now_ms = now_ms
        self._examining: asyncio.Task[Examined] | None = None
        self._looked_s = 0.0

    async def examine(self) -> Examined:
        """All findings of the doctor, not older than `FRESH_S`. One look at a time, whoever asks meanwhile, and however
        many of them give up: each is given the same. A look ends by itself (`sidecar.doctor.doctor.DEADLINE_S`).
        """
        if self._examining is None or self._is_over(self._examining):
            self._looked_s = self._monotonic_s()
            self._examining = asyncio.create_task(self._examine())
        return await asyncio.shield(self._examining)

    def _is_over(self, task: "asyncio.Task[Examined]") -> bool:
        failed = task.done() and (task.cancelled() or task.exception() is not None)
        return failed or (task.done() and self._monotonic_s() - self._looked_s >= FRESH_S)

    async def _examine(self) -> Examined:
        def doctor() -> list[Finding]:
            return self._look(self.settings)

        # Shielded: a thread that is left behind when the process stops has nobody to tell of it.
        findings = await asyncio.shield(asyncio.wrap_future(in_background(doctor)))
        return Examined(findings, self._now_ms())
