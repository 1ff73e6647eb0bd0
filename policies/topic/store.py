"""The policy topic as a store with compare-and-set.

A write is produced with the version it expects, then waits until this process has read it back: only the
order of the topic says who won, and whether a write of which Kafka has said nothing, or no more than that time is up,
is there. The rule is in `log.py`, reading in `reader.py`; here is writing.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from policies.errors import (
    FileManaged,
    PolicyConflict,
    PolicyError,
    PolicyStoreUnavailable,
    PolicyTooLarge,
    TooManyPolicies,
)
from policies.kafka_clients import LastingProducer, Producer
from policies.model import ManagedBy, Policy, Removed, Versioned
from policies.table import PolicyTable
from policies.topic.log import POLICIES_MAX, RECORD_BYTES_MAX, Change, Verdict, encode_change
from policies.topic.reader import PARTITION, OnTable, PolicyReader
from policies.topic.topic import ensure_topic

START_TIMEOUT_S: Final = 30.0
WRITE_TIMEOUT_S: Final = 15.0
READ_TIMEOUT_S: Final = 10.0
IDLE_S: Final = 60.0
SERVE_S: Final = 0.2  # how often a waiting writer looks for a failed delivery
PUBLISH_ROUNDS_MAX: Final = 10
FILE_AUTHOR: Final = "policies file"

_CLIENT: Final = {"reconnect.backoff.max.ms": "1000"}  # back within the 2 s in which a change must be seen
_PRODUCER: Final = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "0",
    "message.timeout.ms": "10000",
}


# Such a record is not in the topic. After any other error it may be, or come yet.
_REFUSED: Final = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.POLICY_VIOLATION}
    | {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART}
    | {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)

_logger = logging.getLogger(__name__)


class _Write(NamedTuple):
    change: Change
    verdict: Future[Verdict]


class PolicyStore:
    """The policies, as every replica sees them. `client_settings` are librdkafka's (brokers, security)."""

    def __init__(self, client_settings: Mapping[str, str], topic: str, replication_factor: int = -1) -> None:
        self.topic = topic
        self._settings = {**_CLIENT, **client_settings}
        self._replication_factor = replication_factor
        self._reader = PolicyReader(self._settings, topic, self._settle)
        self._writes: dict[str, Future[Verdict]] = {}  # produced and not yet read back
        self._producer: LastingProducer | None = None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Create the topic if it is missing, read it to its end, follow it. Raises PolicyStoreUnavailable."""
        if self._producer is not None:
            return
        deadline_s = time.monotonic() + timeout_s
        ensure_topic(self._settings, self.topic, self._replication_factor, timeout_s)
        self._reader.start(max(deadline_s - time.monotonic(), 1.0))
        self._producer = LastingProducer(lambda: Producer({**self._settings, **_PRODUCER}), _let_go)

    def rest(self) -> None:
        """Let the producer go if nothing was written for a while. To be called now and then."""
        if self._producer is not None:
            self._producer.rest(IDLE_S)

    def stop(self) -> None:
        """Follow no longer; the last table stays. Twice is harmless."""
        self._reader.stop()

    # Reading

    @property
    def table(self) -> PolicyTable:
        """The policies now; a new object whenever one changes."""
        return self._reader.table

    @property
    def healthy(self) -> bool:
        """Whether the table is current and writes can succeed."""
        return not self._reader.reason

    @property
    def reason(self) -> str:
        """Why the store is not healthy; empty when it is."""
        return self._reader.reason

    def on_change(self, callback: OnTable) -> None:
        """Call back with every new table, in the reader's thread: be quick and do not raise."""
        self._reader.on_table(callback)

    def versions(self, name: str) -> tuple[Versioned | Removed, ...]:
        """All versions the name ever had, oldest first; empty when it never existed."""
        return self._reader.versions(name)

    def table_at(self, version: int, timeout_s: float = READ_TIMEOUT_S) -> PolicyTable:
        """The policies as of a table version. Waits when another replica was ahead. Raises VersionUnknown."""
        return self._reader.table_at(version, timeout_s)

    # Writing

    def put(self, policy: Policy, expected_version: int, author: str, managed_by: ManagedBy = "api") -> Versioned:
        """Write a new version of the policy; `expected_version` 0: there must be none yet.

        Raises PolicyConflict, FileManaged, PolicyTooLarge, TooManyPolicies, PolicyStoreUnavailable.
        """
        entry = self._wait(self._submit(_change(policy.name, policy, expected_version, author, managed_by)))
        if not isinstance(entry, Versioned):
            raise PolicyError(f"policy {policy.name} was removed by its own write")  # our bug
        return entry

    def delete(self, name: str, expected_version: int, author: str, managed_by: ManagedBy = "api") -> Removed:
        """Remove the policy. Raises as `put`, and PolicyConflict with version 0 when there is none."""
        entry = self._wait(self._submit(_change(name, None, expected_version, author, managed_by)))
        if not isinstance(entry, Removed):
            raise PolicyError(f"policy {name} was written by its own removal")  # our bug
        return entry

    def publish_file(self, policies: Iterable[Policy]) -> PolicyTable:
        """Make the file-managed policies of the topic equal to these; others of the same name are taken over.

        Replicas that start together race here and agree: who loses a write looks again. Raises as `put`.
        """
        wanted = {policy.name: policy for policy in policies}
        for _ in range(PUBLISH_ROUNDS_MAX):
            changes = _difference(wanted, self.table)
            if not changes:
                return self.table
            for write in [self._submit(change) for change in changes]:
                try:
                    self._wait(write)
                except PolicyConflict:
                    continue  # the next round sees what the other wrote
        raise PolicyStoreUnavailable("the policies file cannot be published: others keep changing its policies")

    def _submit(self, change: Change) -> _Write:
        if self._producer is None or self._reader.reason:
            raise PolicyStoreUnavailable(f"policies cannot be written now: {self._reader.reason}")
        current = self.table.policies.get(change.name)
        if current is not None and current.managed_by == "file" and change.managed_by != "file":
            raise FileManaged(change.name)
        if change.expected == 0 and change.policy is None:
            raise PolicyConflict(change.name, 0, 0 if current is None else current.version)
        value = encode_change(change)
        if len(value) > RECORD_BYTES_MAX:
            raise PolicyTooLarge(f"policy {change.name} is larger than {RECORD_BYTES_MAX} bytes")
        verdict: Future[Verdict] = Future()
        self._writes[change.write] = verdict
        try:
            self._producer.produce(self.topic, value, change.name, PARTITION, on_delivery=self._on_delivery(change))
        except (KafkaException, BufferError) as error:
            self._writes.pop(change.write, None)
            raise PolicyStoreUnavailable(f"policy {change.name} cannot be written: {error}") from error
        return _Write(change, verdict)

    def _on_delivery(self, change: Change) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:  # in the topic; whether it won is known when it was read
                return
            if error.code() not in _REFUSED:  # it may be there all the same: that is known when it was read, too
                _logger.warning("a policy may not be written", extra={"policy": change.name, "error": str(error)})
                return
            if (verdict := self._writes.pop(change.write, None)) is None:
                return
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                verdict.set_exception(PolicyTooLarge(f"policy {change.name} is larger than the broker takes"))
            else:
                verdict.set_exception(PolicyStoreUnavailable(f"policy {change.name} was not written: {error}"))

        return delivered

    def _settle(self, verdict: Verdict) -> None:
        write = self._writes.pop(verdict.change.write, None)
        if write is not None:
            write.set_result(verdict)

    def _wait(self, write: _Write) -> Versioned | Removed:
        change, future = write
        verdict = self._verdict_of(change, future)
        if verdict.won is not None:
            return verdict.won
        if verdict.current_version == change.expected:
            raise TooManyPolicies(f"there are {POLICIES_MAX} policies: remove one first")
        raise PolicyConflict(change.name, change.expected, verdict.current_version)

    def _verdict_of(self, change: Change, future: Future[Verdict]) -> Verdict:
        deadline_s = time.monotonic() + WRITE_TIMEOUT_S
        # The verdict comes from the reader at once; a failed delivery only when somebody serves the producer.
        while not wait((future,), SERVE_S).done:
            if self._producer is not None:
                self._producer.poll(0)
            if not future.done() and (self._reader.stopped or time.monotonic() > deadline_s):
                self._writes.pop(change.write, None)
                raise PolicyStoreUnavailable(
                    f"no answer to the write of policy {change.name}; it may still take effect: look again"
                )
        return future.result()


def _let_go(worn: Producer, error: KafkaException) -> None:
    """Purge it, without waiting: the topic shows what it had sent."""
    _logger.warning("another producer of policies is made", extra={"error": str(error)})
    worn.purge(in_queue=True, in_flight=True, blocking=False)
    worn.poll(0)


def _change(name: str, policy: Policy | None, expected_version: int, author: str, managed_by: ManagedBy) -> Change:
    return Change(
        write=uuid.uuid4().hex,
        name=name,
        expected=expected_version,
        author=author,
        managed_by=managed_by,
        policy=policy,
    )


def _difference(wanted: Mapping[str, Policy], table: PolicyTable) -> list[Change]:
    """Changes that make the table's file-managed policies equal to those wanted."""
    changes = []
    for name, policy in wanted.items():
        current = table.policies.get(name)
        if current is None or current.policy != policy or current.managed_by != "file":
            version = 0 if current is None else current.version
            changes.append(_change(name, policy, version, FILE_AUTHOR, "file"))
    for name, current in table.policies.items():
        if name not in wanted and current.managed_by == "file":
            changes.append(_change(name, None, current.version, FILE_AUTHOR, "file"))
    return changes
