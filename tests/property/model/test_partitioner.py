"""Records of one id meet: every way into a delay topic chooses the same partition."""

from hypothesis import given
from hypothesis import strategies as st

from api.message import Draft
from sidecar.model.partitioner import murmur2, partition_of, source_partition

FACTOR = 0x5BD1E995

keys = st.binary(max_size=40)
ids = st.text(min_size=1, max_size=40)
counts = st.integers(1, 1_000)


def java_int(number: int) -> int:
    """As Java's int arithmetic keeps it: 32 bits with a sign."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def shifted(number: int, bits: int) -> int:
    """Java's >>> of an int."""
    return (number % (1 << 32)) >> bits


def java_murmur2(data: bytes) -> int:
    """As org.apache.kafka.common.utils.Utils writes it down, step by step."""
    state = java_int(0x9747B28C ^ len(data))
    for start in range(0, len(data) // 4 * 4, 4):
        block = sum((data[start + place] & 0xFF) << 8 * place for place in range(4))
        block = java_int(java_int(block) * FACTOR)
        block = java_int(java_int(block ^ shifted(block, 24)) * FACTOR)
        state = java_int(state * FACTOR) ^ block
    rest = data[len(data) // 4 * 4 :]
    for place in reversed(range(len(rest))):
        state ^= (rest[place] & 0xFF) << 8 * place
    if rest:
        state = java_int(state * FACTOR)
    state = java_int((state ^ shifted(state, 13)) * FACTOR)
    return state ^ shifted(state, 15)


@given(keys, counts)
def test_a_key_has_javas_partition(key: bytes, partitions: int) -> None:
    assert murmur2(key) == java_murmur2(key) % (1 << 32)
    assert partition_of(key, partitions) == (java_murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.none() | keys, ids, counts)
def test_a_message_over_rest_goes_where_all_of_its_id_go(key: bytes | None, id: str, partitions: int) -> None:
    sent = Draft(id, key, b"v", [], {}).record("reminders", partitions, 0)
    assert sent.partition == source_partition(key, id.encode(), partitions)
    decides = id.encode() if key is None else key
    assert sent.partition == partition_of(decides, partitions)
