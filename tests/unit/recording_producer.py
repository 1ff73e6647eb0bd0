"""A transactional producer for tests of what it is asked to do."""

from collections.abc import Mapping
from typing import Any

from sidecar.generation import Generation
from sidecar.record import LaneId
from tests.simulation.fake_kafka import Refused
from tests.simulation.fake_transactions import TransactionError


class Producer:
    """Does what it is asked and notes it; `errors` are raised by the calls of these names, `left` by each flush."""

    refused = Refused

    def __init__(self, left: tuple[int, ...] = (), **errors: TransactionError) -> None:
        self.calls: list[str] = []
        self.offsets: dict[LaneId, tuple[int, str]] = {}
        self.left = list(left)
        self.errors = errors
        self.purged = Generation(None)

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.errors:
            raise Refused(self.errors[call])

    def flush(self, seconds: float) -> int:
        self._note("flush")
        return self.left.pop(0) if self.left else 0

    def purge(self) -> None:
        self._note("purge")
        self.purged.report(TransactionError("_PURGE_INFLIGHT"), None)

    def give_up(self) -> None:
        self._note("give up")

    def init(self, seconds: float) -> None:
        self._note("init")

    def begin(self) -> None:
        self._note("begin")

    def send_offsets(self, offsets: Mapping[LaneId, tuple[int, str]], member: Any, seconds: float) -> None:
        self._note("offsets" if offsets else "ask")
        self.offsets = dict(offsets)

    def commit(self, seconds: float) -> None:
        self._note("commit")

    def abort(self, seconds: float) -> None:
        self._note("abort")
        self.purged.report(TransactionError("_PURGE_QUEUE"), None)
