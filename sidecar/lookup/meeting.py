"""Where the replicas of a group meet, in Redis: a question goes to all that listen, and has a list for its answers."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import uuid4

from sidecar.lookup.exchange import Question, Refused, opened, question_bytes, read_answer, sealed
from sidecar.lookup.query import Answer
from sidecar.model.record import TopicPartition
from sidecar.overflow.connection import Client, failures
from sidecar.overflow.redis_client import LateCluster
from sidecar.overflow.signing import ANSWER, QUESTION, UNSIGNED, Signing

# Why a question or an answer was left out, as the metric has it.
BAD_QUESTION: Final = "bad_question"
BAD_ANSWER: Final = "bad_answer"
STALE: Final = "stale_question"
BUSY: Final = "busy"

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """A question under way: the partitions that are meant and how far, how many others have heard it (None: nobody
    knows), and how long they are waited for.
    """

    question: Question
    wanted: Mapping[TopicPartition, int]
    others: int | None
    timeout_s: float

    def is_answered(self, answers: Iterable[Answer]) -> bool:
        """Every partition is answered for. An overview is about replicas: those without partitions count, too."""
        return self.question["ask"] != "overview" and not missing_of(self.wanted, answers)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the replicas of one group meet. `left_out` hears why something that was said there was not heeded."""

    redis: Client
    group: str
    left_out: Callable[[str], None] = lambda reason: None
    signing: Signing = UNSIGNED

    @property
    def channel(self) -> str:
        return f"tickover:{self.group}:questions"

    @property
    def answers(self) -> str:
        """How the names of all lists of answers begin."""
        return f"tickover:{self.group}:answer:"

    def publish(self, question: Question, sender: str, wait_s: float) -> tuple[str, int | None]:
        """Ask the others: the list for their answers, and how many have heard it, None where nobody knows.

        Raises OverflowUnavailable.
        """
        reply = self.answers + uuid4().hex
        data = question_bytes(question, reply, sender, int(wait_s * 1_000))
        data = sealed(self.signing, QUESTION, self.channel, data)
        with failures():
            listeners = self.redis.publish(self.channel, data)
        # In a Cluster each node counts its own listeners only.
        return reply, None if isinstance(self.redis, LateCluster) else int(listeners or 0) - 1

    def collect(self, reply: str, answers: list[Answer], asked: Asked) -> None:
        """Add answers until the question is answered, every replica has answered, or the time is up.

        Raises OverflowUnavailable.
        """
        topics = {lane.topic for lane in asked.wanted}
        deadline_s = time.monotonic() + asked.timeout_s
        heard = 0
        while not asked.is_answered(answers):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or (asked.others is not None and heard >= asked.others):
                return
            with failures():
                found = self.redis.blpop([reply], timeout=left_s)
            if found is None:
                continue
            heard += 1
            try:
                data = opened(self.signing, ANSWER, reply, found[1])
                answers.append(read_answer(data, asked.question, topics))
            except Refused as error:
                self.left_out(BAD_ANSWER)
                log.warning("an answer of another replica is left out", extra={"error": str(error)})


def read_by(answers: Iterable[Answer]) -> dict[TopicPartition, int]:
    """Of each partition that somebody answered for, the offset to be read next."""
    read: dict[TopicPartition, int] = {}
    for answer in answers:
        for lane, offset in zip(answer.lanes, answer.read, strict=True):
            read[lane] = max(read.get(lane, -1), offset)
    return read


def missing_of(wanted: Mapping[TopicPartition, int], answers: Iterable[Answer]) -> set[TopicPartition]:
    """Partitions that nobody has read up to the offset that is wanted of them."""
    read = read_by(answers)
    return {lane for lane, end in wanted.items() if read.get(lane, -1) < end}
