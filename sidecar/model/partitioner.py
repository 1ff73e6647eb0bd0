"""The partition that Java's default partitioner gives a key: murmur2, sign bit cleared, modulo.

REST, schedules and the jobs on Spark choose the partition of a delay topic by `source_partition`, so that records of
one id meet: one that replaces, cancels or moves another must come to the partition in which that one is held.
"""

from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """32-bit murmur2 as in org.apache.kafka.common.utils.Utils, as an unsigned number."""
    length = len(data)
    whole = length & ~3
    state = _SEED ^ length
    for i in range(0, whole, 4):
        block = int.from_bytes(data[i : i + 4], "little") * _FACTOR & _WORD
        block = (block ^ (block >> 24)) * _FACTOR & _WORD
        state = (state * _FACTOR & _WORD) ^ block
    if length > whole:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _WORD
    state = (state ^ (state >> 13)) * _FACTOR & _WORD
    return state ^ (state >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition (from 0) of a record with this key in a topic of so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def source_partition(key: bytes | None, message_id: bytes, partitions: int) -> int:
    """The partition (from 0) of a message in a delay topic of so many: by its key, without one by its id."""
    return partition_of(message_id if key is None else key, partitions)
