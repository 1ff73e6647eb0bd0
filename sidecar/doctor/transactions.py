"""Transactions that stay open: behind one of them, readers of committed records are given nothing more."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from policies.kafka_clients import AdminClient
from policies.topic.kafka_tools import KafkaTools
from sidecar.doctor.facts import Finding, Severity
from sidecar.kafka.commit_reader import commits_at

ASK_TIMEOUT_S: Final = 2.0
LOOK_AGAIN_S: Final = 2.0  # tickover's own take less than a second
GUIDE: Final = "docs/how-to/end-a-hanging-transaction.md"

Place = tuple[str, int]


class Transactions:
    """Asks about open transactions. `group` is the one whose commits a recovery starts from."""

    def __init__(self, admin: AdminClient, client: Mapping[str, Any], tools: KafkaTools, group: str) -> None:
        self._admin = admin
        self._client = client
        self._tools = tools
        self._group = group

    def check(self, partitions: Sequence[Place], sources: Sequence[Place]) -> Iterator[Finding]:
        """Findings on `partitions` where a transaction is open, now and after a while; then on the sources' commits."""
        before, hidden = self._open_since(partitions), self._commits_are_hidden(sources)
        if not before and not hidden:
            return
        time.sleep(LOOK_AGAIN_S)
        for (topic, partition), offset in sorted(self._open_since(sorted(before)).items()):
            if before[topic, partition] == offset:
                yield self._stays_open(topic, partition, offset)
        if hidden and self._commits_are_hidden(sources):
            what = f"one that is open hides commits of group {self._group}: a recovery waits until it has ended"
            fix = f"{self._command('find-hanging --broker-id ID')}, of the leaders of __consumer_offsets; {GUIDE}"
            yield Finding(Severity.WARNING, "transactions of the group", what, fix)

    def _command(self, arguments: str) -> str:
        return self._tools.command("kafka-transactions.sh", arguments)

    def _stays_open(self, topic: str, partition: int, offset: int) -> Finding:
        what = (
            f"partition {partition}: one has been open since offset {offset}, and readers of committed records wait "
            "behind it; when it outlives its timeout (transaction.max.timeout.ms at most, 15m), its end was lost"
        )
        abort = self._command(f"abort --topic {topic} --partition {partition} --start-offset {offset}")
        fix = f"{abort}, but only when its find-hanging names it: {GUIDE}"
        return Finding(Severity.WARNING, f"transactions {topic}", what, fix)

    def _open_since(self, partitions: Sequence[Place]) -> dict[Place, int]:
        """The first offset of the oldest open transaction, of those partitions that have one."""
        stable = self._ends(partitions, IsolationLevel.READ_COMMITTED)
        ends = self._ends(list(stable), IsolationLevel.READ_UNCOMMITTED)
        return {place: offset for place, offset in stable.items() if offset < ends.get(place, -1)}

    def _ends(self, partitions: Sequence[Place], isolation: IsolationLevel) -> dict[Place, int]:
        """Where each partition ends for readers of this isolation level; those that don't answer are left out."""
        if not partitions:
            return {}
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(*place): latest for place in partitions}
        answers = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=ASK_TIMEOUT_S)
        ends = {}
        for place, answer in answers.items():
            try:
                ends[place.topic, place.partition] = int(answer.result(ASK_TIMEOUT_S + 1).offset)
            except (KafkaException, TimeoutError):
                continue  # that a topic can't be read is told where it matters
        return ends

    def _commits_are_hidden(self, sources: Sequence[Place]) -> bool:
        """Whether a commit of the group is in a transaction that isn't decided."""
        places = [TopicPartition(*place) for place in sources]
        try:
            commits_at(self._client, self._group, places, timeout_s=ASK_TIMEOUT_S)
        except KafkaException:
            return False  # that they can't be read is told where it matters
        try:
            commits_at(self._client, self._group, places, stable=True, timeout_s=ASK_TIMEOUT_S)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._TIMED_OUT)
        return False
