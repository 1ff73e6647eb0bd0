"""Looking held records up in the whole group: every replica answers for its own partitions.

Replicas meet in Redis, which all of them have: no addresses, no certificates, no tokens between them.

    channel tickover:<group>:questions      PUBLISH: what is asked, and where the answer goes
    list    tickover:<group>:answer:<id>    RPUSH: one answer of each replica; gone after a minute

Which partitions there are, the asker knows from Kafka. What nobody answered for in time (its replica hangs, the
partition is being recovered, what it held is not yet read again, or its overflow is rebuilt) is `missing`: an answer
never pretends to be whole.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Full
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from redis.cluster import RedisCluster
from redis.exceptions import RedisError

from sidecar.backlog import BacklogUnavailable
from sidecar.held_lookup import LocalLookUp
from sidecar.held_query import Answer, Key, LookUpUnavailable, Query, merged
from sidecar.mailbox import EngineError
from sidecar.overflow import OverflowFailure, OverflowLoss, OverflowUnavailable
from sidecar.overflow_link import Client, failures
from sidecar.record import LaneId

TIMEOUT_S: Final = 1.0  # how long other replicas are waited for
ANSWER_KEPT_S: Final = 60
LISTEN_S: Final = 1.0
AGAIN_S: Final = 0.5
STOP_S: Final = 10.0

CATCH_UP_S: Final = 1.0  # how long a look-up waits for what isn't read yet
PROGRESS_S: Final = 0.1

FAILURES: Final = (
    OverflowFailure, OverflowLoss, OverflowUnavailable, EngineError, Full, TimeoutError, BacklogUnavailable,
)  # fmt: skip

log = logging.getLogger(__name__)

NOT_KNOWN: Final = 1 << 63  # an end: so far nobody reads
NO_ENDS: Final[Mapping[LaneId, int]] = MappingProxyType({})

Question = dict[str, Any]


class Known(NamedTuple):
    """What the replicas that answered know, and the partitions that nobody answered for, or not as far as wanted."""

    answers: list[Answer]
    missing: list[LaneId]

    @property
    def read(self) -> dict[LaneId, int]:
        """Of each partition that somebody answered for, the offset to be read next."""
        return _read_by(self.answers)


class Unread(Protocol):
    """What Kafka has that nobody has read (`sidecar.backlog.Backlog`)."""

    def ends(self, lanes: Collection[LaneId]) -> dict[LaneId, int]: ...

    def unread(self, read: Mapping[LaneId, tuple[int, int]]) -> set[LaneId]: ...


class GroupLookUp:
    """Asks all replicas, and answers the others' questions. `partitions` gives the sources' partition counts, `unread`
    what Kafka has beyond what was read.
    """

    def __init__(
        self,
        local: Callable[[], LocalLookUp],
        redis: Client,
        group: str,
        partitions: Callable[[], Mapping[str, int]],
        unread: Unread,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._unread = unread
        self._local = local
        self._name = uuid4().hex
        self._redis = redis
        self._channel = f"tickover:{group}:questions"
        self._answers = f"tickover:{group}:answer:"
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._answering = ThreadPoolExecutor(1, "lookup-answer")
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
        self, query: Query, after: Key, limit: int, ends: Mapping[LaneId, int] = NO_ENDS
    ) -> tuple[list[dict[str, Any]], Key | None, list[LaneId]]:
        """The next rows in order, where to go on (None: nowhere), and the partitions that are missing in them.

        Partitions in `ends` are missing, too, while nobody has read them up to these offsets: a source that isn't
        consumed any more, or one whose new owner is still reading again what was held before a crash.
        """
        known = self._ask({"ask": "page", "query": query, "after": after, "limit": limit}, query, ends)
        rows, following = merged(known.answers, limit)
        return rows, following, known.missing

    def find(self, id: str, query: Query) -> tuple[list[dict[str, Any]], list[LaneId]]:
        """Every held record with this id."""
        known = self._ask({"ask": "find", "query": query, "id": id}, query)
        rows, _ = merged(known.answers, 1 << 30)
        return rows, known.missing

    def find_to_end(self, id: str, query: Query) -> tuple[list[dict[str, Any]], list[LaneId]]:
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

    def _caught_up(self, question: Question, query: Query, ends: Mapping[LaneId, int]) -> Known:
        """What is known when all is read up to `ends`, or as soon as nobody reads on."""
        deadline_s = time.monotonic() + CATCH_UP_S
        known = self._ask(question, query, ends)
        while known.missing and not merged(known.answers, 1)[0] and time.monotonic() < deadline_s:
            before = known.read
            self._stopping.wait(PROGRESS_S)
            known = self._ask(question, query, ends)
            if known.read == before:
                break
        return known

    def forecast(self, query: Query, until_ms: int) -> tuple[dict[int, int], list[LaneId]]:
        """Held records by the minute in which they are due; those due at `until_ms` and later by -1."""
        known = self._ask({"ask": "forecast", "query": query, "until": until_ms}, query)
        counts: dict[int, int] = {}
        for answer in known.answers:
            for minute, count in answer.minutes.items():
                counts[minute] = counts.get(minute, 0) + count
        return counts, known.missing

    def ends(self, query: Query) -> tuple[dict[LaneId, int], list[LaneId]]:
        """Of each partition, the offset to be read next: what is held now lies before it."""
        known = self._ask({"ask": "ends", "query": query}, query)
        rows = [row for answer in known.answers for row in answer.rows]
        return {LaneId(row["topic"], row["partition"]): row["offset"] for row in rows}, known.missing

    def _ask(self, question: Question, query: Query, ends: Mapping[LaneId, int] = NO_ENDS) -> Known:
        """This replica's own answer, and those of others where it doesn't have all partitions.

        Raises LookUpUnavailable: without its own engine or Redis a replica can't say anything.
        """
        try:
            return self._asked(question, {**self._wanted(query), **ends})
        except FAILURES as error:
            raise LookUpUnavailable(str(error) or type(error).__name__) from error

    def _wanted(self, query: Query) -> dict[LaneId, int]:
        """Partitions that are meant, as far as they were read."""
        return {
            lane: 0
            for topic, count in self._partitions().items()
            for lane in (LaneId(topic, partition) for partition in range(count))
            if query.wants_lane(lane)
        }

    def _asked(self, question: Question, wanted: Mapping[LaneId, int]) -> Known:
        local = self._local()
        mine = {view.lane: view.next for view in local.views()}
        others = any(mine.get(lane, -1) < end for lane, end in wanted.items())
        listeners = reply = None
        if others:
            reply = self._answers + uuid4().hex
            with failures():
                listeners = self._redis.publish(
                    self._channel, json.dumps({**question, "reply": reply, "from": self._name})
                )
        answers = [answer_to(local, question)]
        if reply is not None:
            # In a Cluster each node counts its own listeners only.
            others_max = None if isinstance(self._redis, RedisCluster) else int(listeners or 0) - 1
            self._collect(reply, answers, wanted, others_max)
        return Known(answers, sorted(_missing(wanted, answers)))

    def _collect(self, reply: str, answers: list[Answer], wanted: Mapping[LaneId, int], others_max: int | None) -> None:
        """Wait until every partition is answered for, every replica has answered, or the time is up."""
        deadline_s = time.monotonic() + self._timeout_s
        heard = 0
        while _missing(wanted, answers):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or (others_max is not None and heard >= others_max):
                return
            with failures():
                found = self._redis.blpop([reply], timeout=left_s)
            if found is not None:
                heard += 1
                if (answer := read_answer(found[1])) is not None:
                    answers.append(answer)

    # --- answering ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._redis.pubsub() as channel:
                    channel.subscribe(self._channel)
                    while not self._stopping.is_set():
                        self.step(channel)
            except (RedisError, OSError) as error:
                log.warning("questions of other replicas can't be heard", extra={"error": type(error).__name__})
                self._stopping.wait(AGAIN_S)

    def step(self, channel: Any) -> None:
        """Hear at most one question, waiting for a second."""
        message = channel.get_message(timeout=LISTEN_S)
        if message is not None and message["type"] == "subscribe":
            self.heard.set()
        if message is not None and message["type"] == "message":
            self._answering.submit(self._reply, message["data"])

    def _reply(self, data: bytes) -> None:
        try:
            question = json.loads(data)
            reply = str(question.pop("reply"))
            if question.pop("from") == self._name or not reply.startswith(self._answers):
                return
            try:
                answer = answer_to(self._local(), question)
            except FAILURES as error:
                log.warning("a look-up can't be answered", extra={"error": str(error) or type(error).__name__})
                answer = Answer([], [], None, {}, [])
            self._redis.rpush(reply, json.dumps(answer))
            self._redis.expire(reply, ANSWER_KEPT_S)
        except (RedisError, OSError, ValueError, KeyError, TypeError) as error:
            log.warning("another replica's question can't be answered", extra={"error": type(error).__name__})


def _read_by(answers: Iterable[Answer]) -> dict[LaneId, int]:
    """Of each partition that somebody answered for, the offset to be read next."""
    read: dict[LaneId, int] = {}
    for answer in answers:
        for lane, offset in zip(answer.lanes, answer.read, strict=True):
            read[lane] = max(read.get(lane, -1), offset)
    return read


def _missing(wanted: Mapping[LaneId, int], answers: Iterable[Answer]) -> set[LaneId]:
    """Partitions that nobody has read up to the offset that is wanted of them."""
    read = _read_by(answers)
    return {lane for lane, end in wanted.items() if read.get(lane, -1) < end}


def answer_to(local: LocalLookUp, question: Question) -> Answer:
    """What this process knows. Raises ValueError, KeyError or TypeError for what is no question of ours."""
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


def read_answer(data: bytes) -> Answer | None:
    """Another replica's answer; None for what is none."""
    try:
        lanes, rows, reach, minutes, read = json.loads(data)
        if len(lanes) != len(read):
            raise ValueError(read)
        return Answer(
            [LaneId(*lane) for lane in lanes],
            rows,
            Key(*reach) if reach is not None else None,
            {int(minute): int(count) for minute, count in minutes.items()},
            [int(offset) for offset in read],
        )
    except (ValueError, TypeError, AttributeError):
        log.warning("an answer of another replica can't be read: is it of another version?")
        return None
