"""End markers of transactions: control batches with one record each."""

from struct import Struct, error
from typing import NamedTuple

from broker.records.record_batch import CONTROL, TRANSACTIONAL, BatchHeader, Buffer
from broker.records.records import Producer, Record, build_batch, read_records

ABORT = 0
COMMIT = 1
VERSION = 0

_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch


class EndMarker(NamedTuple):
    """The end of a producer's transaction, and the epoch of the coordinator that ended it."""

    is_aborted: bool
    coordinator_epoch: int


def build_end_marker(producer_id: int, producer_epoch: int, marker: EndMarker, now_ms: int) -> bytearray:
    """The batch that ends a transaction."""
    key = _KEY.pack(VERSION, ABORT if marker.is_aborted else COMMIT)
    record = Record(0, now_ms, key, _VALUE.pack(VERSION, marker.coordinator_epoch))
    return build_batch([record], producer=Producer(producer_id, producer_epoch), attributes=TRANSACTIONAL | CONTROL)


def read_end_marker(header: BatchHeader, data: Buffer, position: int = 0) -> EndMarker | None:
    """Read a control batch's end marker; None if it is empty, or says something else. ApiError: it can't be read."""
    for record in read_records(header, data, position):
        try:
            kind = _KEY.unpack_from(record.key or b"")[1]
            epoch = _VALUE.unpack_from(record.value or b"")[1]
        except error:
            return None
        if kind in (ABORT, COMMIT):
            return EndMarker(kind == ABORT, epoch)
    return None
