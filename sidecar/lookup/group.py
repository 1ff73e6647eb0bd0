"""Looking held records up in the whole group: every replica answers for its own partitions.

Replicas meet in Redis, which all of them have: no addresses, no certificates, no tokens between them.
What is said there, and how it is checked: `exchange.py`.

Which partitions there are, the asker knows from Kafka. What nobody answered for in time (its replica hangs, the
partition is being recovered, what it held is not yet read again, or its overflow is rebuilt) is `missing`: an answer
never pretends to be whole.

A question is worth an answer only while its asker waits: each says how long that is, counted from when it is heard, for
clocks of hosts differ. Few wait to be answered, and those whose time is over are dropped.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Full
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from redis.exceptions import RedisClusterException, RedisError

from sidecar.engine.engine import EngineError
from sidecar.kafka.backlog import BacklogUnavailable
from sidecar.lookup.exchange import Question, Refused, answer_bytes, opened, read_question, sealed
from sidecar.lookup.local import LaneView, LocalLookUp
from sidecar.lookup.meeting import BAD_QUESTION, BUSY, STALE, Asked, Meeting, missing_of, read_by
from sidecar.lookup.query import ALL, Answer, Key, LookUpUnavailable, Query, merged
from sidecar.lookup.report import MINUTE_MS, MINUTES, DueMinute, Overview, Replica, Report, read_report, row_of_report
from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import OverflowFailure, OverflowLoss, OverflowUnavailable
from sidecar.overflow.signing import ANSWER, QUESTION

TIMEOUT_S: Final = 1.0  # how long other replicas are waited for
ANSWER_KEPT_S: Final = 60
LISTEN_S: Final = 1.0
AGAIN_S: Final = 0.5
STOP_S: Final = 10.0
WAITING_MAX: Final = 64  # questions that wait to be answered; more are dropped, and their askers told nothing

CATCH_UP_S: Final = 1.0  # how long a look-up waits for what isn't read yet
PROGRESS_S: Final = 0.1
FORECAST_KEPT_S: Final = 10.0  # of an overview: counting looks at each record in memory

AWAY: Final = (RedisError, RedisClusterException, OSError)  # the second is no RedisError
FAILURES: Final = (
    OverflowFailure, OverflowLoss, OverflowUnavailable, EngineError, Full, TimeoutError, BacklogUnavailable,
)  # fmt: skip

log = logging.getLogger(__name__)

NOT_KNOWN: Final = 1 << 63  # an end: so far nobody reads
NO_ENDS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class Known(NamedTuple):
    """Answers of the replicas, and the partitions that nobody answered for, or not as far as wanted."""

    answers: list[Answer]
    missing: list[TopicPartition]

    @property
    def read(self) -> dict[TopicPartition, int]:
        """Of each partition that somebody answered for, the offset to be read next."""
        return read_by(self.answers)


class Unread(Protocol):
    """Asks Kafka for records that nobody has read (`sidecar.kafka.backlog.Backlog`)."""

    def ends(self, lanes: Collection[TopicPartition]) -> dict[TopicPartition, int]: ...

    def unread(self, read: Mapping[TopicPartition, tuple[int, int]]) -> set[TopicPartition]: ...


class GroupLookUp:
    """Asks all replicas, and answers the others' questions. `partitions` gives the sources' partition counts, `unread`
    what Kafka has beyond what was read, `report` what this process tells of itself (its argument: why it can't say what
    is due when).
    """

    def __init__(
        self,
        local: Callable[[], LocalLookUp],
        meeting: Meeting,
        partitions: Callable[[], Mapping[str, int]],
        unread: Unread,
        report: Callable[[str], Report],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._unread = unread
        self._local = local
        self._report = report
        self._due = (
            -1,
            0.0,
            Counter[int](),
            Counter[int](),
        )  # until when, when counted, near, far
        self._name = uuid4().hex
        self._meeting = meeting
        self._redis = meeting.redis
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._answering = ThreadPoolExecutor(1, "lookup-answer")
        self._room = threading.Semaphore(WAITING_MAX)
        self.heard = threading.Event()  # others' questions reach us
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer others. Twice is harmless."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._listen, name="lookup", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Answer no longer. Twice is harmless."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_S)
        self._answering.shutdown(wait=False, cancel_futures=True)

    # --- asking ---------------------------------------------------------------------------------------------------

    def page(
        self, query: Query, after: Key, limit: int, ends: Mapping[TopicPartition, int] = NO_ENDS
    ) -> tuple[list[dict[str, Any]], Key | None, list[TopicPartition]]:
        """The next rows in order, where to go on (None: nowhere), and the partitions that are missing in them.

        Partitions in `ends` are missing, too, while nobody has read them up to these offsets: a source that isn't
        consumed any more, or one whose new owner is still reading again what was held before a crash.
        """
        known = self._ask({"ask": "page", "query": query, "after": after, "limit": limit}, query, ends)
        rows, following = merged(known.answers, limit)
        return rows, following, known.missing

    def find(self, id: str, query: Query) -> tuple[list[dict[str, Any]], list[TopicPartition]]:
        """Every held record with this id."""
        known = self._ask({"ask": "find", "query": query, "id": id}, query)
        rows, _ = merged(known.answers, 1 << 30)
        return rows, known.missing

    def find_to_end(self, id: str, query: Query) -> tuple[list[dict[str, Any]], list[TopicPartition]]:
        """As `find`, but partitions with records that nobody has read yet are missing, too. They are waited for."""
        rows, missing = self.find(id, query)
        if rows or missing:
            return rows, missing
        wanted = self._wanted(query)
        try:
            told = self._unread.ends(wanted)
            ends = {**dict.fromkeys(wanted, NOT_KNOWN), **told}
            known = self._caught_up({"ask": "find", "query": query, "id": id}, query, ends)
            rows, _ = merged(known.answers, 1 << 30)
            if rows:
                return rows, []
            read = known.read
            behind = {lane: (read[lane], ends[lane]) for lane in known.missing if lane in read and lane in told}
            unread = self._unread.unread(behind)
        except FAILURES as error:
            raise LookUpUnavailable(str(error) or type(error).__name__) from error
        return [], [lane for lane in known.missing if lane not in behind or lane in unread]

    def _caught_up(self, question: Question, query: Query, ends: Mapping[TopicPartition, int]) -> Known:
        """Answers once all is read up to `ends`, or earlier: once a row is found, nobody reads on, or `CATCH_UP_S` is
        over.
        """
        deadline_s = time.monotonic() + CATCH_UP_S
        known = self._ask(question, query, ends)
        while known.missing and not merged(known.answers, 1)[0] and time.monotonic() < deadline_s:
            before = known.read
            self._stopping.wait(PROGRESS_S)
            known = self._ask(question, query, ends)
            if known.read == before:
                break
        return known

    def forecast(self, query: Query, until_ms: int) -> tuple[dict[int, int], list[TopicPartition]]:
        """Held records by the minute in which they are due; those due at `until_ms` and later by -1."""
        known = self._ask({"ask": "forecast", "query": query, "until": until_ms}, query)
        return _minutes_of(known.answers), known.missing

    def ends(self, query: Query) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """Of each partition, the offset to be read next: what is held now lies before it."""
        known = self._ask({"ask": "ends", "query": query}, query)
        rows = [row for answer in known.answers for row in answer.rows]
        return {TopicPartition(row["topic"], row["partition"]): row["offset"] for row in rows}, known.missing

    def overview(self, until_ms: int, others: int) -> Overview:
        """Reports of all replicas, and what is due when up to `until_ms`. `others`: how many replicas there are beside
        this one, where Redis doesn't say how many hear a question (a Cluster).

        Raises nothing: without Redis it is an overview of this process alone, which says so.
        """
        question: Question = {"ask": "overview", "query": ALL, "until": until_ms}
        wanted, problem, reply, listeners = dict[TopicPartition, int](), "", None, others
        try:
            wanted = self._wanted(ALL)
            reply, heard_by = self._meeting.publish(question, self._name, self._timeout_s)
            listeners = others if heard_by is None else heard_by
        except FAILURES as error:
            problem = str(error) or type(error).__name__
        answers = [self._overview_here(until_ms)]
        if reply is not None:
            try:
                self._meeting.collect(reply, answers, Asked(question, wanted, listeners, self._timeout_s))
            except FAILURES as error:
                problem = str(error) or type(error).__name__
        replicas = [Replica(read_report(row), read_by([answer])) for answer in answers for row in answer.rows]
        return Overview(replicas, _minutes_of(answers), sorted(missing_of(wanted, answers)), problem)

    def _overview_here(self, until_ms: int) -> Answer:
        """The report of this process. Raises nothing: what can't be said is empty, and the report says why."""
        views: list[LaneView] = []
        near, far, problem = Counter[int](), Counter[int](), ""
        try:
            local = self._local()
            views = local.views()
            near, far = self._due_here(local, views, until_ms)
        except FAILURES as error:
            problem = str(error) or type(error).__name__
        last = until_ms // MINUTE_MS
        hour = tuple(DueMinute(minute=one, held=near[one]) for one in range(last - MINUTES, last) if near[one])
        report = row_of_report(self._report(problem).model_copy(update={"near": hour}))
        return Answer([view.lane for view in views], [report], None, dict(near + far), [view.next for view in views])

    def _due_here(
        self, local: LocalLookUp, views: Sequence[LaneView], until_ms: int
    ) -> tuple[Counter[int], Counter[int]]:
        known_until_ms, counted_s, near, far = self._due
        now_s = time.monotonic()
        if known_until_ms != until_ms or now_s - counted_s > FORECAST_KEPT_S:
            near, far = local.due(views, until_ms)
            self._due = until_ms, now_s, near, far
        return near, far

    def _ask(self, question: Question, query: Query, ends: Mapping[TopicPartition, int] = NO_ENDS) -> Known:
        """Answer of this replica itself, and those of others where it doesn't have all partitions.

        Raises LookUpUnavailable: without its own engine or Redis a replica can't say anything.
        """
        try:
            return self._asked(question, {**self._wanted(query), **ends})
        except FAILURES as error:
            raise LookUpUnavailable(str(error) or type(error).__name__) from error

    def _wanted(self, query: Query) -> dict[TopicPartition, int]:
        """Partitions that are meant, as far as they were read."""
        return {
            lane: 0
            for topic, count in self._partitions().items()
            for lane in (TopicPartition(topic, partition) for partition in range(count))
            if query.wants_lane(lane)
        }

    def _asked(self, question: Question, wanted: Mapping[TopicPartition, int]) -> Known:
        local = self._local()
        mine = {view.lane: view.next for view in local.views()}
        others = any(mine.get(lane, -1) < end for lane, end in wanted.items())
        reply, others_max = self._meeting.publish(question, self._name, self._timeout_s) if others else (None, None)
        answers = [answer_to(local, question)]
        if reply is not None:
            self._meeting.collect(reply, answers, Asked(question, wanted, others_max, self._timeout_s))
        return Known(answers, sorted(missing_of(wanted, answers)))

    # --- answering ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._redis.pubsub() as channel:
                    channel.subscribe(self._meeting.channel)
                    while not self._stopping.is_set():
                        self.step(channel)
            except AWAY as error:
                log.warning("questions of other replicas can't be heard", extra={"error": type(error).__name__})
                self._stopping.wait(AGAIN_S)

    def step(self, channel: Any) -> None:
        """Hear at most one question, waiting for a second."""
        message = channel.get_message(timeout=LISTEN_S)
        if message is not None and message["type"] == "subscribe":
            self.heard.set()
        if message is not None and message["type"] == "message":
            self.hear(message["data"], time.monotonic())

    def hear(self, data: bytes, heard_s: float) -> None:
        """Have a question answered that was heard at this moment of the monotonic clock, if there is room for it."""
        try:
            data = opened(self._meeting.signing, QUESTION, self._meeting.channel, data)
            question = read_question(data, self._meeting.answers)
        except Refused as error:
            self._meeting.left_out(BAD_QUESTION)
            log.warning("a question is left out", extra={"error": str(error)})
            return
        if question["from"] == self._name:
            return
        if not self._room.acquire(blocking=False):
            self._meeting.left_out(BUSY)
            return
        self._answering.submit(self._answer_in_time, question, heard_s + question["wait_ms"] / 1_000)

    def _answer_in_time(self, question: Question, deadline_s: float) -> None:
        try:
            if time.monotonic() >= deadline_s:
                self._meeting.left_out(STALE)
                return
            self._reply(question)
        except (*AWAY, ValueError, KeyError, TypeError) as error:
            log.warning("another replica's question can't be answered", extra={"error": type(error).__name__})
        finally:
            self._room.release()

    def _reply(self, question: Question) -> None:
        try:
            data = answer_bytes(self._answer(question))
        except (*FAILURES, Refused) as error:
            log.warning("a look-up can't be answered", extra={"error": str(error) or type(error).__name__})
            data = answer_bytes(Answer([], [], None, {}, []))
        self._redis.rpush(question["reply"], sealed(self._meeting.signing, ANSWER, question["reply"], data))
        self._redis.expire(question["reply"], ANSWER_KEPT_S)

    def _answer(self, question: Question) -> Answer:
        if question["ask"] == "overview":
            return self._overview_here(int(question["until"]))
        return answer_to(self._local(), question)


def _minutes_of(answers: Iterable[Answer]) -> dict[int, int]:
    """Held records by minute, of all answers."""
    counts: dict[int, int] = {}
    for answer in answers:
        for minute, count in answer.minutes.items():
            counts[minute] = counts.get(minute, 0) + count
    return counts


def answer_to(local: LocalLookUp, question: Question) -> Answer:
    """Answer of this process. Raises ValueError, KeyError or TypeError for what is no question of ours."""
    query = Query(*question["query"])
    match question["ask"]:
        case "page":
            return local.page(query, Key(*question["after"]), int(question["limit"]))
        case "find":
            return local.find(str(question["id"]), query)
        case "forecast":
            return local.forecast(query, int(question["until"]))
        case "ends":
            return local.ends(query)
        case other:
            raise ValueError(f"an unknown question {other!r}")
