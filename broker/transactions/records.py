"""Records of `__transaction_state`, in Kafka's format.

    key 0     transactional id
    value 0   producer id, epoch, timeout, state, partitions by topic (null if it is empty),
              update and start time

A record without a value says that the id has expired.
"""

from itertools import groupby
from typing import Final

from broker.protocol.primitive_types import Reader, UnreadableRecord, Writer
from broker.transactions.transaction import TransactionState, TransactionValues
from purgatory.log_offsets import TopicPartition

VERSION: Final = 0
COUNT_MAX: Final = 1_000_000

Pair = tuple[bytes, bytes | None]


def encode_transaction(transactional_id: str, values: TransactionValues | None) -> Pair:
    """A transactional id as it is, or that it is no more."""
    key = bytes(Writer(VERSION).string(transactional_id).data)
    if values is None:
        return key, None
    value = Writer(VERSION).int64(values.producer_id).int16(values.producer_epoch).int32(values.timeout_ms)
    value.int8(values.state)
    if values.state is TransactionState.EMPTY:
        value.int32(-1)
    else:
        by_topic = [(name, list(keys)) for name, keys in groupby(sorted(values.partitions), lambda key: key.topic)]
        value.int32(len(by_topic))
        for name, keys in by_topic:
            value.string(name).int32(len(keys))
            for key_of in keys:
                value.int32(key_of.partition)
    value.int64(values.update_ms).int64(values.start_ms)
    return key, bytes(value.data)


def decode_transactional_id(key: bytes | None) -> str:
    """UnreadableRecord if it is none."""
    reader = Reader(key)
    _check_version(reader)
    return reader.string()


def decode_transaction(value: bytes) -> TransactionValues:
    """UnreadableRecord if it is none."""
    reader = Reader(value)
    _check_version(reader)
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    number = reader.int8()
    if number not in TransactionState.__members__.values():
        raise UnreadableRecord(f"a transaction in state {number}")
    partitions = set()
    for _ in range(_count(reader)):
        name = reader.string()
        partitions |= {TopicPartition(name, reader.int32()) for _ in range(_count(reader))}
    update_ms, start_ms = reader.int64(), reader.int64()
    state = TransactionState(number)
    return TransactionValues(producer_id, epoch, timeout_ms, state, frozenset(partitions), start_ms, update_ms)


def _count(reader: Reader) -> int:
    count = reader.int32()
    if count > COUNT_MAX:
        raise UnreadableRecord(f"an array of {count}")
    return max(0, count)


def _check_version(reader: Reader) -> None:
    version = reader.int16()
    if version != VERSION:
        raise UnreadableRecord(f"a record of version {version}")
