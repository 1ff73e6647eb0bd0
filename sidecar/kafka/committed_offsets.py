"""Where source partitions begin: the group's commits, cut to what the sources still have.

Used by the recovery thread alone, with clients of its own: these questions may take long, above all while a dead
process's transaction is open and its offsets can't be known, and the engine must go on firing meanwhile.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AclOperation

from policies.kafka_clients import AdminClient, Consumer, batch
from sidecar.kafka.client_settings import (
    ANSWER_TIMEOUT_S,
    client_log,
    commit_reader_settings,
    first_records_settings,
)
from sidecar.kafka.commit_reader import group_commits
from sidecar.kafka.errors import words_of
from sidecar.kafka.topics import has_controller, topic_id_of
from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.ledger.topic import CommitsHidden, LedgerUnavailable
from sidecar.model.log_cuts import ReadMark
from sidecar.model.ports import Start, mark_of
from sidecar.model.record import TopicPartition

FOUND_TIMEOUT_S: Final = 3.0
VAIN_MAX: Final = 3  # first connections may take longer than one round
READ_BATCH: Final = 1_000
READ_WAIT_S: Final = 0.05
COMMITTED_TIMEOUT_S: Final = 3.0  # an open transaction hides them: asked again, and problems are shown meanwhile
ONE_TIMEOUT_S: Final = 0.3  # of one partition alone: what nothing hides is answered at once
OFFSETS_MAX: Final = 200  # in one commit: brokers write them as one batch, with names and metadata 5 KB each at most

log = logging.getLogger(__name__)


class KafkaRecords:
    """Blocking; for one thread."""

    def __init__(self, client: Mapping[str, str], group: str) -> None:
        self._settings = {**first_records_settings(client, group), "logger": client_log}
        self._consumer: Any = None
        self._vain = 0  # rounds in a row in which nobody answered

    def at(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
        """The first record of each at or behind an offset, None where there is none. Who doesn't answer in time is left
        out. Raises KafkaException.
        """
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
        found: dict[TopicPartition, ReadMark | None] = {}
        deadline_s = time.monotonic() + FOUND_TIMEOUT_S
        self._consumer.assign([ClientPartition(*lane, offset) for lane, offset in places.items()])
        try:
            while len(found) < len(places) and time.monotonic() < deadline_s:
                self._take(batch(self._consumer, READ_BATCH, READ_WAIT_S), places, found)
        finally:
            self._consumer.unassign()
        self._vain = 0 if found or not places else self._vain + 1
        if self._vain >= VAIN_MAX:  # it may wait for nothing
            self.close()
        return found

    def close(self) -> None:
        """Let go of the client, without waiting for brokers."""
        self._consumer, self._vain = None, 0

    def _take(
        self,
        messages: Sequence[Message],
        places: Mapping[TopicPartition, int],
        found: dict[TopicPartition, ReadMark | None],
    ) -> None:
        for message in messages:
            lane, error = TopicPartition(message.topic() or "", message.partition() or 0), message.error()
            if lane not in places or lane in found:
                continue
            if error is None:
                found[lane] = mark_of(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET and message.offset() not in (None, places[lane]):
                pass  # of an earlier question
            elif error.code() == KafkaError._PARTITION_EOF or self._is_behind_end(lane, places[lane], error):
                found[lane] = None
            else:
                log.warning("looking at a source's log", extra={"source_partition": str(lane), "error": str(error)})

    def _is_behind_end(self, lane: TopicPartition, offset: int, error: KafkaError) -> bool:
        """Out of range, and not since retention took what was there."""
        if error.code() != KafkaError._AUTO_OFFSET_RESET:
            return False
        first, _ = self._consumer.get_watermark_offsets(ClientPartition(*lane), timeout=ANSWER_TIMEOUT_S)
        return bool(first <= offset)


class _Topic(NamedTuple):
    """Id and partition count of a topic, as `Start` has them."""

    id: str
    partitions: int


class KafkaStarts:
    """With `start_latest`, a source that is new to the group begins at its end instead of its beginning. Partitions
    added to it later begin at their beginning all the same: what is sent before they are noticed would be lost.
    """

    def __init__(self, client: Mapping[str, str], group: str, start_latest: bool) -> None:
        self._start_latest = start_latest
        self._group = group
        self._settings = {**commit_reader_settings(client, group), "logger": log}
        self._client: dict[str, Any] = dict(client)
        self._consumer: Any = None
        self._admin: Any = None
        self._records = KafkaRecords(client, group)

    def starts(self, lanes: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        """Starts of the partitions that are known. A partition without a leader, with an open transaction, or whose
        topic nobody describes is left out: ask again.

        Raises LedgerUnavailable when the brokers don't answer, CommitsHidden when none is known and some are hidden.
        """
        try:
            known = self._known(lanes)
        except LedgerUnavailable:
            self.close()  # clients that saw brokers die may look for them in vain: the next try is with new ones
            raise
        if len(known) == len(lanes) > 1:  # one alone is asked about where its log was cut back: others may follow
            self._consumer = self._admin = None  # until the next assignment, which may be weeks away
        return known

    def has_commits(self) -> bool:
        """See `Starts.has_commits`. Raises LedgerUnavailable when the brokers don't answer."""
        try:
            return bool(group_commits(self._client, self._group, strict=True))
        except KafkaException as error:
            raise LedgerUnavailable(f"no answer about the commits of {self._group}: {error}") from error

    def records(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, ReadMark | None]:
        """See `Starts.records`. Raises LedgerUnavailable when the brokers don't answer."""
        return dict(_answered("what logs have", lambda: self._records.at(places)))

    def may_read(self, topic: str) -> bool:
        """See `Starts.may_read`. Raises LedgerUnavailable when the brokers don't answer."""
        admin, wanted = AdminClient(self._client), TopicCollection([topic])  # kept until it is answered
        answers = admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=ANSWER_TIMEOUT_S)
        try:
            allowed = answers[topic].result(ANSWER_TIMEOUT_S + 1).authorized_operations
        except (KafkaException, TimeoutError) as error:
            code = error.args[0].code() if isinstance(error, KafkaException) else None
            if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART):
                return bool(code == KafkaError.UNKNOWN_TOPIC_OR_PART)
            raise LedgerUnavailable(f"no answer about the right to read {topic}: {error}") from error
        return AclOperation.READ in (allowed or ())

    def _known(self, lanes: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        if self._consumer is None:
            self._consumer, self._admin = Consumer(self._settings), AdminClient(self._client)
        topics = _answered("topics", lambda: self._topics({lane.topic for lane in lanes}))
        commits, unknown = self._not_hidden(lanes)
        new = {one.topic for one in commits if one.error is None and one.offset == OFFSET_INVALID}
        when_new, hidden = self._partitions_when_new(new, topics) if self._start_latest else ({}, set())
        bounds = self._bounds([one for one in commits if one.error is None and one.topic in topics])
        starts: dict[TopicPartition, Start] = {}
        for committed in commits:
            lane = TopicPartition(committed.topic, committed.partition)
            if committed.error is not None:
                log.warning(
                    "no answer about a commit", extra={"source_partition": str(lane), "error": str(committed.error)}
                )
                continue
            if lane.topic in hidden and committed.offset == OFFSET_INVALID:
                continue  # added, or of a new topic: nobody knows yet
            topic = topics.get(lane.topic)
            if topic is None:
                continue  # the commit may be about a former topic of this name: nobody knows yet
            if lane.topic in when_new:
                topic = topic._replace(partitions=when_new[lane.topic])
            if (start := _answered("a log", partial(self._start, committed, topic, bounds.get(lane)))) is not None:
                starts[lane] = start
        if hidden and not starts:
            raise CommitsHidden(
                f"no answer about commits of {min(hidden)}: which of its partitions are new isn't known"
            )
        if unknown is not None and not starts:
            raise unknown
        return starts

    def _not_hidden(self, lanes: Sequence[TopicPartition]) -> tuple[list[ClientPartition], CommitsHidden | None]:
        """Commits that Kafka tells, and the error where it hid some. It answers nothing while it hides the commit of
        any partition that is asked about, so then each is asked about alone, a few at a time, beginning elsewhere the
        next time.
        """
        try:
            return self._committed(lanes), None
        except CommitsHidden as hidden:
            if len(lanes) == 1:
                raise
            known: list[ClientPartition] = []
            until_s = time.monotonic() + COMMITTED_TIMEOUT_S
            for lane in random.sample(lanes, len(lanes)):
                if time.monotonic() >= until_s:
                    break
                with suppress(CommitsHidden):
                    known += self._committed([lane], ONE_TIMEOUT_S)
            log.warning("commits of some partitions are hidden", extra={"hidden": len(lanes) - len(known)})
            return known, hidden

    def _committed(
        self, lanes: Iterable[TopicPartition], timeout_s: float = COMMITTED_TIMEOUT_S
    ) -> list[ClientPartition]:
        wanted = [ClientPartition(lane.topic, lane.partition) for lane in lanes]
        try:
            commits: list[ClientPartition] = self._consumer.committed(wanted, timeout=timeout_s)
        except KafkaException as error:
            problem = error.args[0]
            if problem.code() != KafkaError._TIMED_OUT:
                raise LedgerUnavailable(f"no answer about commits: {words_of(problem)}") from error
            why = "a transaction that stays open hides them: `tickover doctor` finds it"
            raise CommitsHidden(f"no answer about commits ({why}): {words_of(problem)}") from error
        return commits

    def _partitions_when_new(self, names: set[str], topics: Mapping[str, _Topic]) -> tuple[dict[str, int], set[str]]:
        """How many partitions these topics had when they were new to the group, as the commits of others have it; and
        the topics of which some commits are hidden: a count without these may be too high.
        """
        counts: dict[str, int] = {}
        hidden: set[str] = set()
        for name in names:
            lanes = [TopicPartition(name, n) for n in range(topics[name].partitions)] if name in topics else []
            try:
                commits = self._committed(lanes) if lanes else []
            except CommitsHidden:
                hidden.add(name)
                continue
            for one in commits:
                state = decode_metadata(one.offset, one.metadata or "") if one.error is None else None
                if state is not None and state.partitions:
                    counts[name] = min(state.partitions, counts.get(name, state.partitions))
        return counts, hidden

    def close(self) -> None:
        """Let go of the clients. Not by the consumer's own close, which waits for brokers that are away."""
        self._consumer = self._admin = None
        self._records.close()

    def _bounds(self, places: Sequence[ClientPartition]) -> dict[tuple[str, int], tuple[int, int]]:
        """Bounds of these logs, all at once; none where one can't be told: then each is asked about alone."""
        try:
            found: dict[tuple[str, int], tuple[int, int]] = self._consumer.log_bounds(places, COMMITTED_TIMEOUT_S)
        except KafkaException:
            return {}
        return found

    def _start(self, committed: ClientPartition, topic: _Topic, bounds: tuple[int, int] | None) -> Start | None:
        topic_id = topic.id
        state = decode_metadata(committed.offset, committed.metadata or "")
        known_id = state.topic_id if state is not None else ""
        place = {"topic": committed.topic, "partition": committed.partition}
        try:
            first, end = bounds or self._consumer.get_watermark_offsets(committed, timeout=ANSWER_TIMEOUT_S)
        except KafkaException as error:
            log.warning("no answer about a partition's log; it waits", extra={**place, "error": str(error.args[0])})
            self._consumer.list_topics(
                committed.topic, timeout=ANSWER_TIMEOUT_S
            )  # a new partition is known from now on
            return None
        if committed.offset == OFFSET_INVALID:
            added = committed.partition >= topic.partitions > 0
            if self._start_latest and not added:
                return Start(end, "", *topic, earliest=first, log_start=first, log_end=end)
            return Start(first, "", *topic, log_start=first, log_end=end)
        if (state is None and committed.offset > end) or (known_id and topic_id and known_id != topic_id):
            log.error(
                "this topic was deleted and created again, or lost records: its old commit is not used",
                extra={**place, "committed": committed.offset},
            )
            return Start(first, "", *topic, made_anew=True, log_start=first, log_end=end)
        offset = max(committed.offset, first)
        if offset > committed.offset:
            log.error(
                "the source's retention took records that were open here",
                extra={**place, "from": committed.offset, "count": offset - committed.offset},
            )
        partitions = (state.partitions if state is not None else 0) or topic.partitions
        return Start(offset, committed.metadata or "", topic_id or known_id, partitions, log_start=first, log_end=end)

    def _topics(self, topics: set[str]) -> dict[str, _Topic]:
        """Ids and partition counts of topics; a topic without an answer is left out. An id is "" where brokers have
        none to give (before 2.8, or the mock).
        """
        if not has_controller(self._admin, next(iter(topics)), ANSWER_TIMEOUT_S):
            answers = {name: self._admin.list_topics(name, timeout=ANSWER_TIMEOUT_S).topics[name] for name in topics}
            return {name: _Topic("", len(answer.partitions)) for name, answer in answers.items()}
        answers = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=ANSWER_TIMEOUT_S)
        found: dict[str, _Topic] = {}
        for topic, answer in answers.items():
            try:
                described = answer.result(ANSWER_TIMEOUT_S + 1)  # the request's own limit comes first
                found[topic] = _Topic(topic_id_of(described), len(described.partitions))
            except (KafkaException, TimeoutError) as error:
                log.warning("no answer about a topic", extra={"topic": topic, "error": str(error)})
                if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found[topic] = _Topic("", 0)  # an answer: its first commit is refused, which ends the process
        return found


def _answered(what: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except KafkaException as error:
        raise LedgerUnavailable(f"no answer about {what}: {words_of(error.args[0])}") from error


def commits_of(offsets: Mapping[TopicPartition, tuple[int, str]]) -> Iterator[list[ClientPartition]]:
    """Offsets and metadata as the client takes them, as many at a time as fit into one request; nothing is one, too."""
    wanted = [ClientPartition(lane.topic, lane.partition, offset, text) for lane, (offset, text) in offsets.items()]
    for first in range(0, max(len(wanted), 1), OFFSETS_MAX):
        yield wanted[first : first + OFFSETS_MAX]
