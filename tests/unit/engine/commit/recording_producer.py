"""A transactional producer for tests of what it is asked to do."""

from collections.abc import Mapping

from sidecar.engine.commit.interval import CommitInterval
from sidecar.model.ports import Member
from sidecar.model.record import TopicPartition
from tests.simulation.fake_kafka import Refused
from tests.simulation.fake_transactions import TransactionError

PURGED = "mail"  # the topic of the record that a purge takes out of the queue


class Purged:
    """Message of the record that a purge takes out of the queue."""

    def topic(self) -> str:
        return PURGED


class Producer:
    """Does what it is asked and notes it; `errors` are raised by the calls of these names, each time or as often as
    they are listed; `left` is what each flush leaves."""

    refused = Refused

    def __init__(self, left: tuple[int, ...] = (), **errors: TransactionError | list[TransactionError | None]) -> None:
        self.calls: list[str] = []
        self.offsets: dict[TopicPartition, tuple[int, str]] = {}
        self.left = list(left)
        self.errors = errors
        self.takes_blocks = True
        self.purged = CommitInterval(None)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        error = self.errors.get(call)
        if isinstance(error, list):
            error = error.pop(0) if error else None
        if error is not None:
            raise Refused(error)

    def flush(self, seconds: float) -> int:
        self._note("flush")
        return self.left.pop(0) if self.left else 0

    def purge(self) -> None:
        self._note("purge")
        self.purged.report(TransactionError("_PURGE_INFLIGHT"), Purged())

    def give_up(self) -> None:
        self._note("give up")

    def init(self, seconds: float) -> None:
        self._note("init")

    def begin(self) -> None:
        self._note("begin")

    def send_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]], member: Member, seconds: float) -> None:
        self._note("offsets" if offsets else "ask")
        self.offsets = dict(offsets)

    def commit(self, seconds: float) -> None:
        self._note("commit")

    def abort(self, seconds: float) -> None:
        self._note("abort")
        if self.calls.count("abort") == 1:  # afterwards nothing of it is under way
            self.purged.report(TransactionError("_PURGE_QUEUE"), None)
