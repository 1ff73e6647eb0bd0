"""Any block comes back as it was; anything else is refused with the one error readers expect."""

from dataclasses import replace

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sidecar.ledger.block import (
    NO_ENTRIES,
    NOTHING_SETTLED,
    Block,
    Entries,
    LedgerFormatError,
    Settled,
    decode,
    encode,
)
from sidecar.model.record import Outcome, Position

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NEAR = st.integers(1_763_000_000_000, 1_763_000_000_000 + 70_000)
ATTEMPTS = st.integers(0, 300)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
WORDS = st.sampled_from(["orders-retry@3", "reminders@12", "ö", ""]) | TEXTS
STEPS = st.integers(1, 300) | st.integers(1, 70_000) | st.integers(1, 1 << 33)


@st.composite
def columns(draw, values, count):
    """A column as they come: all the same, rising, or anything."""
    match draw(st.sampled_from(["same", "rising", "any"])):
        case "same":
            return [draw(values)] * count
        case "rising":
            return sorted(draw(st.lists(values, min_size=count, max_size=count)))
        case _:
            return draw(st.lists(values, min_size=count, max_size=count))


@st.composite
def offset_columns(draw):
    offset = draw(st.integers(0, 1 << 40))
    offsets = [offset + step for step in range(draw(st.sampled_from([0, 0, 300])))]
    for step in draw(st.lists(STEPS, max_size=12)):
        offset = (offsets[-1] if offsets else offset) + step
        offsets.append(offset)
    return offsets


@st.composite
def some_of(draw, offsets, values):
    places = draw(st.sets(st.sampled_from(offsets), max_size=5)) if offsets else ()
    return {place: draw(values) for place in places}


@st.composite
def settled_parts(draw):
    offsets = draw(offset_columns())
    if not offsets:
        return NOTHING_SETTLED
    count = len(offsets)
    return Settled(
        offsets=offsets,
        dues_ms=draw(columns(NEAR | INT64, count) | columns(NEAR, count)),
        outcomes=draw(columns(st.sampled_from(Outcome), count)),
        in_overflow=draw(columns(st.integers(0, 2), count)),
        policies=draw(columns(WORDS, count)),
        targets=draw(columns(WORDS, count)),
        attempts=draw(columns(ATTEMPTS, count)),
        ids=draw(some_of(offsets, TEXTS)),
        reasons=draw(some_of(offsets, WORDS)),
        related=draw(some_of(offsets, INT64)),
    )


@st.composite
def entry_parts(draw):
    offsets = draw(offset_columns())
    if not offsets:
        return NO_ENTRIES
    count = len(offsets)
    return Entries(
        offsets=offsets,
        dues_ms=draw(columns(NEAR, count)),
        policies=draw(columns(WORDS, count)),
        targets=draw(columns(WORDS, count)),
        target_partitions=draw(columns(st.integers(-1, 2_000), count)),
        attempts=draw(columns(ATTEMPTS, count)),
        first_failures_ms=draw(columns(st.just(-1) | NEAR, count)),
        expires_ms=draw(columns(st.just(-1) | NEAR | INT64, count)),
        dead_letters=draw(columns(WORDS, count)),
        ids=draw(some_of(offsets, TEXTS)),
        sources=draw(some_of(offsets, INT64)),
    )


BLOCKS = st.builds(
    Block,
    group=TEXTS,
    topic=TEXTS,
    partition=st.integers(0, (1 << 31) - 1),
    written_ms=INT64,
    low=INT64,
    watermark=st.builds(Position, INT64, INT64),
    acknowledged=INT64,
    overflow_held=INT64,
    runs=st.lists(st.tuples(INT64, INT64), max_size=4).map(tuple),
    number=INT64,
    settled=settled_parts(),
    entries=entry_parts(),
    carried=entry_parts(),
)


@given(BLOCKS)
def test_any_block_comes_back_as_it_was(block):
    back = decode(encode(block))

    assert back == block
    assert all(type(outcome) is Outcome for outcome in back.settled.outcomes)


@given(BLOCKS)
def test_the_same_block_is_the_same_bytes_whatever_sequences_hold_it(block):
    as_tuples = replace(
        block,
        settled=block.settled._replace(offsets=tuple(block.settled.offsets), targets=tuple(block.settled.targets)),
    )

    assert encode(as_tuples) == encode(block)


@given(BLOCKS, st.data())
def test_a_damaged_block_is_refused_or_read_and_nothing_else(block, data):
    body = body_of(encode(block))
    place = data.draw(st.integers(0, len(body) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=9))
    damaged = body[:place] + damage + body[place + data.draw(st.integers(0, len(damage))) :]

    assert read_or_refused(b"TL\x02\x00" + damaged)
    assert read_or_refused(b"TL\x02\x01" + zstandard.compress(damaged))


@given(st.binary(max_size=200), st.sampled_from([b"", b"TL", b"TL\x01\x00", b"TL\x02\x01", b"TL\x00\x00"]))
def test_garbage_is_refused(garbage, head):
    assert read_or_refused(head + garbage)


@given(BLOCKS, st.data())
def test_a_block_cut_short_or_lengthened_is_refused(block, data):
    body = body_of(encode(block))
    kept = data.draw(st.integers(0, len(body) - 1))

    for damaged in (body[:kept], body + b"\x00"):
        try:
            decode(b"TL\x02\x00" + damaged)
        except LedgerFormatError:
            continue
        raise AssertionError("a block of another length was read")


def body_of(data: bytes) -> bytes:
    return zstandard.decompress(data[4:]) if data[3] else data[4:]


def read_or_refused(data: bytes) -> bool:
    """Whether decoding ends in a block that can be written again or in a refusal; other errors are raised."""
    try:
        block = decode(data)
    except LedgerFormatError as error:
        return bool(error.reason)
    return decode(encode(block)) == block
