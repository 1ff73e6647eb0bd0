"""The engine's transactional producers over confluent-kafka, and the root of their transactional ids.

A process keeps its name over its restarts and shares it with nobody (`take_slot`). One that was killed may leave a
transaction open, which hides its partitions' offsets from everyone until the brokers give up on it. Its successor ends
it at once, if it comes under the same transactional ids. So each process takes the first file that no living process
has locked, and goes by the random name in it; the lock ends with the process, however it ends.
"""

import fcntl
import logging
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from policies.kafka_clients import Producer
from sidecar.kafka.background import in_background
from sidecar.kafka.client_settings import LONE_BATCHES, SMALL_BATCHES, client_log, transactional_settings
from sidecar.kafka.committed_offsets import commits_of
from sidecar.kafka.errors import OnProblem, raising_what_is_meant
from sidecar.model.call_limit import SHORT_GRACE_S, within
from sidecar.model.ports import Member, TransactionalOutput
from sidecar.model.record import TopicPartition

log = logging.getLogger(__name__)

GIVE_UP_S: Final = 0.5  # the client's threads need a moment for reports of what was purged

_BATCHES: Final = {"small": SMALL_BATCHES, "alone": LONE_BATCHES}


class KafkaTransactions:
    """A producer as the port `TransactionalOutput`. Its bound `produce` is the client's own."""

    refused: type[Exception] = KafkaException

    def __init__(self, settings: Mapping[str, Any], on_problem: OnProblem) -> None:
        def report(error: KafkaError) -> None:
            """A producer that is of no use any more shows at its next call, after which the engine takes another."""
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                on_problem("all brokers are down")
            log.warning("kafka client", extra={"error": str(error)})

        self._producer: Any = Producer({**settings, "error_cb": report, "logger": client_log})
        self.produce: Any = self._producer.produce
        self.poll = raising_what_is_meant(self._producer.poll)
        self._flush = raising_what_is_meant(self._producer.flush)
        self.begin = self._producer.begin_transaction

    def close(self) -> None:
        """End its threads; what is under way is given up."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        with suppress(KafkaException, SystemError):  # what it didn't survive is told again, after it has ended
            self._producer.close()

    def purge(self) -> None:
        """See the port."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=True)

    def give_up(self) -> None:
        """See the port."""
        with suppress(KafkaException, SystemError):  # what it didn't survive is known
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self.flush(GIVE_UP_S)

    def init(self, seconds: float) -> None:
        """See the port."""
        within(seconds, self._producer.init_transactions)

    def flush(self, seconds: float) -> int:
        """See the port."""
        missing: int = within(seconds, self._flush)
        return missing

    def send_offsets(self, offsets: Mapping[TopicPartition, tuple[int, str]], member: Member, seconds: float) -> None:
        """See the port."""
        for some in commits_of(offsets):
            send = self._producer.send_offsets_to_transaction
            within(seconds, send, some, member.metadata, grace_s=SHORT_GRACE_S)

    def commit(self, seconds: float) -> None:
        """See the port."""
        within(seconds, self._producer.commit_transaction)

    def abort(self, seconds: float) -> None:
        """See the port."""
        within(seconds, self._producer.abort_transaction)


class KafkaOutputs:
    """Makes producers under transactional ids that begin with `root`."""

    def __init__(self, client: Mapping[str, str], root: str, on_problem: OnProblem) -> None:
        self._client = client
        self._root = root
        self._on_problem = on_problem
        self._successors: Counter[str] = Counter()

    def output(self, name: str) -> KafkaTransactions:
        """See the port."""
        count = self._successors[name]
        transactional_id = f"{self._root}.{name}.{count}" if count else f"{self._root}.{name}"
        settings = transactional_settings(self._client, transactional_id, _BATCHES.get(name, {}))
        return KafkaTransactions(settings, self._on_problem)

    def successor(self, name: str) -> KafkaTransactions:
        """See the port."""
        self._successors[name] += 1
        return self.output(name)

    def let_go(self, output: TransactionalOutput) -> None:
        """See the port. The client's own end may wait for brokers without limit: nobody waits with it."""
        assert isinstance(output, KafkaTransactions)
        in_background(output.close)

    def executor(self) -> Executor:
        """A thread to wait in."""
        return ThreadPoolExecutor(1, "committer")


SLOTS_MAX: Final = 1_000
_NAME_LENGTH: Final = 16


class Slot:
    """A name of this process alone. `close` lets another process have it."""

    def __init__(self, name: str, handle: int = -1) -> None:
        self.name = name
        self._handle = handle

    def close(self) -> None:
        """Twice is harmless."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def take_slot(directory: Path) -> Slot:
    """The first free one in `directory`; where nothing can be written, a name for this once."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(SLOTS_MAX):
            handle = os.open(directory / f"slot-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            return Slot(_name_in(handle), handle)
    except OSError as error:
        log.warning(
            "no place to keep a name: after a crash open transactions end by their timeout, 10 s to 20 s later; "
            "let data_dir be a directory that can be written to, or set instance_id",
            extra={"directory": str(directory), "error": error.strerror},
        )
    return Slot(secrets.token_hex(_NAME_LENGTH // 2))


def _name_in(handle: int) -> str:
    name = os.pread(handle, _NAME_LENGTH, 0).decode(errors="replace")
    if len(name) != _NAME_LENGTH or not name.isalnum():
        name = secrets.token_hex(_NAME_LENGTH // 2)
        os.pwrite(handle, name.encode(), 0)
    return name
