"""Marks of letters that were sent again, by the sidecar's redrives and by jobs. A job reads them before it begins, and
its tasks write them in the transactions that send the letters. What the records of their topic are:
`sidecar/model/redrive_marks.py`.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from pipeline.errors import PipelineError
from pipeline.ingest.kafka_source import read_whole
from sidecar.model.record import Place
from sidecar.model.redrive_marks import BLOCK_LETTERS, Block, Kept, Marks, block_of

PARTITION: Final = 0  # of the topic of redriven letters
MARKED: Final = "topic string, partition int, block bigint, words array<bigint>"
_WORDS: Final = Struct(f"<{BLOCK_LETTERS // 64}q")


class Marked(NamedTuple):
    """Letters of a block that were sent: bit n % 64 of word n // 64 stands for its letter n."""

    topic: str
    partition: int
    block: int
    words: list[int]


class Marking(NamedTuple):
    """How letters are marked: in this topic, under the ids of their dead-letter topics. Those of others aren't."""

    topic: str
    ids: Mapping[str, str]


def read_marks(client: Mapping[str, str], topic: str) -> Marks:
    """All marks in this topic, as of now: also those behind what is still open. Raises PipelineError."""
    marks = Marks()
    try:
        for key, value in read_whole(client, topic):
            marks.apply(key or b"", value or b"")
    except TimeoutError as error:
        raise PipelineError(f"{error}; a transaction is open there, `tickover doctor` names it: try again") from error
    return marks


def marked_of(marks: Marks, ids: Mapping[str, str]) -> list[Marked]:
    """Marks of the topics with these ids, by block."""
    return [
        Marked(topic, block.partition, block.number, list(_WORDS.unpack(bits.to_bytes(_WORDS.size, "little"))))
        for topic, topic_id in ids.items()
        for block, bits in marks.blocks(topic_id, topic)
    ]


class Marker:
    """The records of one task. Its `plan` is its own, so nobody else writes them."""

    def __init__(self, marking: Marking, plan: str) -> None:
        self.topic = marking.topic
        self._ids = marking.ids
        self._plan = plan
        self._own: dict[Block, Kept] = {}
        self._going: dict[Block, Kept] = {}

    def records(self, letters: Iterable[Place], now_ms: int) -> list[tuple[bytes, bytes]]:
        """Key and value of the records of these letters, to be written in the transaction that sends them."""
        offsets: dict[Block, list[int]] = {}
        for place in letters:
            if place.topic in self._ids:
                offsets.setdefault(block_of(self._ids[place.topic], place), []).append(place.offset)
        self._going = {
            block: self._own.get(block, Kept(0, now_ms, now_ms)).plus(found, now_ms) for block, found in offsets.items()
        }
        return [(block.key(self._plan), kept.value()) for block, kept in self._going.items()]

    def written(self) -> None:
        """The last `records` are facts."""
        self._own |= self._going
