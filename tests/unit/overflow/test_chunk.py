"""Chunks: what goes in comes out, and what is damaged is noticed."""

import pytest
import yaml

from policies.headers import OFFSET_MAX
from policies.model import Policy, Versioned
from policies.request import ABSENT
from policies.table import PolicyTable
from sidecar.model.record import Held, Position
from sidecar.overflow.chunk import BYTES_MAX, HEADERS_MAX, RECORDS_MAX, Blob, ChunkCodec, ChunkDamagedError
from sidecar.settings.settings import IntakeSettings

START = Position(-1, -1)
END = Position(OFFSET_MAX, OFFSET_MAX)


def held(offset: int, due_ms: int = 1_000, value: bytes | None = b"value", **fields: object) -> Held:
    """A record as the engine makes it."""
    plain = Held(due_ms, offset, "orders", -1, b"key", value, [], "policy@1", None, 0, -1, [], -1, "orders-dlq", 8)
    return plain._replace(**fields)  # type: ignore[arg-type]


def test_records_come_back_equal() -> None:
    records = [
        held(1),
        held(2, key=None, value=None),
        held(3, value=b"", headers=[("a", b"\xff\xfe"), ("a", None), ("", b"")]),
        held(4, headers=[("a", b"1"), ("b", b"2")], trailer=[("tickover-id", b"x")], origin=b"t/0/1"),
        held(5, due_ms=2_000, target="other", policy="p@2", attempt=3, first_failure_ms=999, expires_ms=5_000),
    ]
    ((run, blob),) = ChunkCodec().pack(records)
    assert list(run) == records
    assert ChunkCodec().unpack(blob, START, END) == records


def test_only_the_wanted_rows_come_back() -> None:
    records = [held(offset, due_ms=1_000 + offset // 10, value=b"%d" % offset) for offset in range(100)]
    ((_, blob),) = ChunkCodec().pack(records)
    after, until = records[13].position, records[57].position
    assert ChunkCodec().unpack(blob, after, until) == records[14:58]
    assert ChunkCodec().unpack(blob, records[99].position, END) == []


def test_of_places_alone_the_same_rows_come_back() -> None:
    records = [held(offset, due_ms=1_000 + offset // 10, headers=[("h", b"v")]) for offset in range(100)]
    ((_, blob),) = ChunkCodec().pack(records)
    after, until = records[13].position, records[57].position
    found = ChunkCodec(places_only=True).unpack(blob, after, until)
    assert [one.position for one in found] == [one.position for one in records[14:58]]
    assert all(one.value is None and not one.headers for one in found)


def test_the_same_records_give_the_same_bytes() -> None:
    records = [held(offset, headers=[("h", b"%d" % offset)]) for offset in range(50)]
    copies = [Held(*record) for record in records]
    assert ChunkCodec().pack(records)[0][1] == ChunkCodec().pack(copies)[0][1]


def test_a_chunk_has_a_limit_of_records_and_of_bytes() -> None:
    many = ChunkCodec().pack([held(offset) for offset in range(RECORDS_MAX + 1)])
    assert [len(run) for run, _ in many] == [RECORDS_MAX, 1]
    large = [held(offset, value=bytes(BYTES_MAX // 4)) for offset in range(8)]
    packed = ChunkCodec().pack(large)
    assert all(blob.raw_bytes <= BYTES_MAX for _, blob in packed)
    assert [record for run, _ in packed for record in run] == large


def test_a_record_larger_than_a_chunk_has_one_for_itself() -> None:
    records = [held(1), held(2, value=bytes(3 * BYTES_MAX)), held(3)]
    packed = ChunkCodec().pack(records)
    assert [len(run) for run, _ in packed] == [1, 1, 1]
    assert [ChunkCodec().unpack(blob, START, END)[0] for _, blob in packed] == records


@pytest.mark.parametrize("place", [0, 1, -1])
def test_damage_is_noticed(place: int) -> None:
    ((_, blob),) = ChunkCodec().pack([held(1), held(2)])
    data = bytearray(blob.data)
    data[place] ^= 1
    with pytest.raises(ChunkDamagedError):
        ChunkCodec().unpack(blob._replace(data=bytes(data)), START, END)


def test_a_size_that_is_not_the_headers_is_refused_before_it_is_allocated() -> None:
    ((_, blob),) = ChunkCodec().pack([held(1)])
    with pytest.raises(ChunkDamagedError):
        ChunkCodec().unpack(Blob(blob.data, blob.raw_bytes + 1, blob.content_hash), START, END)


def test_strings_are_shared_within_a_chunk() -> None:
    ((_, blob),) = ChunkCodec().pack([held(1, headers=[("h", b"")]), held(2, headers=[("h", b"")])])
    first, second = ChunkCodec().unpack(blob, START, END)
    assert first.target is second.target
    assert first.policy is second.policy
    assert first.headers[0][0] is second.headers[0][0]


@pytest.mark.parametrize(
    "fields",
    [{"target": "no topic"}, {"target": "t\0"}, {"target": "t" * 250}, {"dead_letter": "no topic"},
     {"dead_letter": "t" * 254}, {"target_partition": 1 << 31},
     {"target_partition": -2}, {"attempt": -1}, {"expires_ms": -2}, {"size": -1}, {"size": 1 << 40}, {"source": -2}],
)  # fmt: skip
def test_what_no_record_has_is_damage(fields: dict[str, object]) -> None:
    """A producer would raise what nobody expects of it; a size of a terabyte would stop the wheel."""
    ((_, blob),) = ChunkCodec().pack([held(1)._replace(**fields), held(2, source=1)])  # type: ignore[arg-type]
    with pytest.raises(ChunkDamagedError):
        ChunkCodec().unpack(blob, START, END)


@pytest.mark.parametrize("length", [245, 246, 249])
@pytest.mark.parametrize("part", ["delay: {max: 1d}", "retry: {attempts: 3, backoff: {kind: fixed, delay: 1m}}"])
def test_what_a_policy_makes_of_a_topic_with_a_long_name_comes_back(length: int, part: str) -> None:
    """The dead-letter topic of a topic has by default its name and four characters more."""
    name = "t" * length
    topic = name if part.startswith("delay") else "work-retry"
    written = f"{{name: p, match: {{topics: [{topic}]}}, {part}, target: {{topic: {'x' if topic == name else name}}}}}"
    policy = Policy.model_validate(yaml.safe_load(written))
    (rule,) = PolicyTable(1, {"p": Versioned(policy, 1, "me", 0, "api")}).rules(topic)
    target, dead_letter = rule.topics_of(ABSENT)
    assert len(dead_letter) == length + 4
    record = held(1, target=target, dead_letter=dead_letter)
    ((_, blob),) = ChunkCodec().pack([record])
    assert ChunkCodec().unpack(blob, START, END) == [record]


@pytest.mark.parametrize("records", [[held(2), held(1)], [held(1, due_ms=2), held(2, due_ms=1)], [held(1), held(1)]])
def test_records_out_of_order_are_damage(records: list[Held]) -> None:
    ((_, blob),) = ChunkCodec().pack(records)
    with pytest.raises(ChunkDamagedError):
        ChunkCodec().unpack(blob, START, END)


def test_what_unpacks_to_more_than_is_ever_written_is_refused_before_it_is_allocated() -> None:
    ((_, blob),) = ChunkCodec().pack([held(1, value=bytes(2 * BYTES_MAX))])
    with pytest.raises(ChunkDamagedError, match="claims"):
        ChunkCodec().unpack(blob._replace(rows=2), START, END)


def test_as_many_headers_as_a_record_may_have_are_read_back() -> None:
    headers = [("", None)] * HEADERS_MAX
    ((_, blob),) = ChunkCodec().pack([held(1, headers=headers)])
    assert ChunkCodec().unpack(blob, START, END)[0].headers == headers
    field = IntakeSettings.model_fields["headers_max"]
    assert [limit.le for limit in field.metadata if hasattr(limit, "le")] == [HEADERS_MAX]
