"""Marks of letters that were sent again, when and by which plan: one record for each plan and each block of a
partition. Pure.

    <topic id>/<topic>/<partition>/<block>/<plan id>   ->   {"first_ms": 1, "last_ms": 9, "sent": "//8B"}

A block is BLOCK_LETTERS offsets; bit n of `sent` (little-endian, base64) stands for offset block * BLOCK_LETTERS + n.
The letters of a plan that discards are marked alike, with `"discarded": true`: a program of before takes them for sent.
A plan writes records of its own only, each in the transaction that sends the letters, so nobody overwrites another's,
and compaction keeps the last of each. Jobs of the pipeline write them, too, each task under a plan id of its own. A
million letters in a row are 245 records of about 800 bytes.

Topic ids are Kafka's, or empty where brokers have none: a topic that is made anew begins at offset 0 again, and its
letters are others. A key has them as Kafka writes them, without the slashes that the client's form of them may have.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sidecar.model.record import Place

SCHEMA: Final = 1
BLOCK_LETTERS: Final = 4_096
_AS_KAFKA_WRITES: Final = str.maketrans("+/", "-_")
BITS_LENGTH_MAX: Final = 4 * -(-BLOCK_LETTERS // 8 // 3) + 4


class Sent(NamedTuple):
    """By whom a letter was sent again or discarded, and when that plan did so in its block: from and to, epoch ms."""

    plan: str
    first_ms: int
    last_ms: int
    discarded: bool = False


class Fates(NamedTuple):
    """Letters of a topic that were sent again or discarded. `blocks`: by partition and number of the block, a bit for
    each letter that was last sent again, and one for each that was last discarded.
    """

    topic_id: str
    blocks: Mapping[tuple[int, int], tuple[int, int]]

    def of(self, partition: int, offset: int) -> tuple[int, int]:
        """Whether (1 or 0) a letter was sent again, and whether it was discarded; it is open where it was neither."""
        if not self.blocks:
            return 0, 0
        sent, discarded = self.blocks.get((partition, offset // BLOCK_LETTERS), (0, 0))
        bit = offset % BLOCK_LETTERS
        return sent >> bit & 1, discarded >> bit & 1


class Block(NamedTuple):
    """BLOCK_LETTERS offsets of a partition, about whose letters a plan's record speaks."""

    topic_id: str
    topic: str
    partition: int
    number: int

    def key(self, plan: str) -> bytes:
        """The key of a plan's record."""
        return f"{self.topic_id}/{self.topic}/{self.partition}/{self.number}/{plan}".encode()

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return (self.number + 1) * BLOCK_LETTERS


class Kept(NamedTuple):
    """Letters of a block that one plan has sent, a bit each, and between which times (epoch ms) it sent them.

    `discarded`: they were not sent, but are settled by a person.
    """

    bits: int
    first_ms: int
    last_ms: int
    discarded: bool = False

    def plus(self, offsets: Collection[int], now_ms: int) -> "Kept":
        """A copy with these offsets added, sent now."""
        bits = self.bits
        for offset in offsets:
            bits |= 1 << (offset % BLOCK_LETTERS)
        return self._replace(bits=bits, last_ms=max(now_ms, self.last_ms))

    def value(self) -> bytes:
        """As it is written."""
        raw = self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")
        sent = b64encode(raw).decode()
        mark = _Value(first_ms=self.first_ms, last_ms=self.last_ms, sent=sent, discarded=self.discarded)
        return mark.model_dump_json(exclude=set() if self.discarded else {"discarded"}).encode()


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    schema_version: int = SCHEMA
    first_ms: int
    last_ms: int
    sent: Annotated[str, Field(max_length=BITS_LENGTH_MAX)]
    discarded: bool = False


class Marks:
    """All that was sent again or discarded, as far as the records were read. Not locked."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[Block, dict[str, Kept]]] = {}

    def apply(self, key: bytes, value: bytes) -> None:
        """Take in one record; an empty value ends it. Garbage, and what a newer version wrote, is passed over."""
        known = _known(key)
        if known is None:
            return
        block, plan = known
        if value:
            kept = _kept(value)
            if kept is not None:
                self._topics.setdefault(block.topic, {}).setdefault(block, {})[plan] = kept
            return
        blocks = self._of(block.topic)
        plans = blocks.get(block, {})
        plans.pop(plan, None)
        if not plans:
            blocks.pop(block, None)
        if not blocks:
            self._topics.pop(block.topic, None)

    def find(self, topic_id: str, place: Place) -> Sent | None:
        """Plan that sent or discarded this letter last, and its times; None: the letter is open."""
        plans = self._of(place.topic).get(block_of(topic_id, place))
        if not plans:
            return None
        bit = 1 << (place.offset % BLOCK_LETTERS)
        found = [Sent(plan, *kept[1:]) for plan, kept in plans.items() if kept.bits & bit]
        return max(found, key=lambda sent: (sent.last_ms, sent.plan), default=None)

    def kept(self, block: Block, plan: str) -> Kept | None:
        """Letters of a block that a plan has sent; None: no record says so."""
        return self._of(block.topic).get(block, {}).get(plan)

    def count(self, topic_id: str, topic: str, starts: Mapping[int, int]) -> int:
        """How many offsets of a topic are marked, from the first of their partition (`starts`) on."""
        found = 0
        for block, bits in self.blocks(topic_id, topic):
            start = starts.get(block.partition)
            if start is None or block.end <= start:
                continue
            found += (bits >> max(start - block.number * BLOCK_LETTERS, 0)).bit_count()
        return found

    def blocks(self, topic_id: str, topic: str) -> Iterator[tuple[Block, int]]:
        """The blocks of a topic in which letters were sent, with the bits of all plans."""
        topic_id = _text(topic_id)
        for block, plans in self._of(topic).items():
            if block.topic_id == topic_id:
                yield block, reduce(or_, (kept.bits for kept in plans.values()))

    def fates(self, topic_id: str, topic: str) -> Fates:
        """Letters of a topic that were sent again or discarded; the last plan counts, as for `find`."""
        text, blocks = _text(topic_id), dict[tuple[int, int], tuple[int, int]]()
        for block, plans in self._of(topic).items():
            if block.topic_id != text:
                continue
            sent = discarded = 0
            for _, kept in sorted(plans.items(), key=lambda one: (one[1].last_ms, one[0])):
                sent, discarded = sent & ~kept.bits, discarded & ~kept.bits
                if kept.discarded:
                    discarded |= kept.bits
                else:
                    sent |= kept.bits
            blocks[block.partition, block.number] = (sent, discarded)
        return Fates(topic_id, blocks)

    def has_id(self, topic: str) -> bool:
        """Whether something was sent of a topic of this name while the brokers had ids."""
        return any(block.topic_id for block in self._of(topic))

    def stale(self, topic_id: str, topic: str, starts: Mapping[int, int]) -> Iterator[bytes]:
        """Keys of records about letters that are no more: before the first offset of their partition (`starts`), or of
        a former topic of this name.
        """
        topic_id = _text(topic_id)
        for block, plans in self._of(topic).items():
            is_former = bool(topic_id) and block.topic_id != topic_id
            if is_former or block.end <= starts.get(block.partition, 0):
                yield from (block.key(plan) for plan in plans)

    def _of(self, topic: str) -> dict[Block, dict[str, Kept]]:
        return self._topics.get(topic, {})


def block_of(topic_id: str, place: Place) -> Block:
    """The block that a letter is in."""
    return Block(_text(topic_id), place.topic, place.partition, place.offset // BLOCK_LETTERS)


def _text(topic_id: str) -> str:
    return topic_id.translate(_AS_KAFKA_WRITES)


def _known(key: bytes) -> tuple[Block, str] | None:
    parts = key.decode(errors="replace").split("/", 4)
    if len(parts) != 5 or not all(n.isascii() and n.isdigit() and len(n) <= 18 for n in parts[2:4]):
        return None
    return Block(parts[0], parts[1], int(parts[2]), int(parts[3])), parts[4]


def _kept(value: bytes) -> Kept | None:
    try:
        told = _Value.model_validate_json(value)
        bits = int.from_bytes(b64decode(told.sent, validate=True), "little")
    except (ValidationError, ValueError):
        return None
    if told.schema_version > SCHEMA or bits.bit_length() > BLOCK_LETTERS:
        return None
    return Kept(bits, told.first_ms, told.last_ms, told.discarded)
