"""The topic of pauses in memory."""

from dataclasses import dataclass, field

from sidecar.kafka.topic_follower import Apply, LogUnavailable
from sidecar.operations.pauses.store import PauseStore

TOPIC = "tickover.pauses"


@dataclass
class MemoryPauses:
    """A topic with a reader that is always at its end, unless a test says otherwise. `store` reads and writes it."""

    now_ms: int = 0
    is_away: bool = False
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    readers: list[Apply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.another()

    def another(self) -> PauseStore:
        """The store of one more replica."""
        return PauseStore(TOPIC, self._follow, lambda _: self, lambda: self.now_ms)

    def _follow(self, apply: Apply) -> "MemoryPauses":
        self.readers.append(apply)
        for key, value in self.records:
            apply(key, value or b"", 0)
        return self

    def write(self, key: bytes, value: bytes | None) -> None:
        if self.is_away:
            raise LogUnavailable("no broker answers")
        self.records.append((key, value))
        for apply in self.readers:
            apply(key, value or b"", 0)

    def wait_for(self, offset: int) -> None:
        assert offset < len(self.records)

    def catch_up(self) -> None:
        if self.is_away:
            raise LogUnavailable("no broker answers")

    def start(self) -> None:
        """Nothing to do: a reader is at the end at once."""

    def stop(self) -> None:
        """Nothing to do: no thread runs."""
