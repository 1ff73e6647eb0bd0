"""Formats of earlier versions are read, and those of later ones are refused, in words that help.

The bytes here were written by a released or merged version. They never change: a format that changes has a new number,
and its own bytes beside these. The ledger's and the commit's are in test_block.py and test_commit_metadata.py.
"""

from collections.abc import Callable

import pytest

from policies.errors import NewerSchema
from policies.headers import OFFSET_MAX
from policies.topic.log import SCHEMA, decode_change
from sidecar.ledger.block import decode
from sidecar.ledger.commit_metadata import decode_metadata
from sidecar.ledger.frame import NewerLedgerFormatError
from sidecar.model.record import Held, Position
from sidecar.overflow.chunk import ChunkCodec
from sidecar.overflow.interface import NewerOverflowFormat
from sidecar.overflow.keys import COARSE, FINE, FORMAT, HeaderFormatError, read_header

EVERYTHING = (Position(-1, -1), Position(OFFSET_MAX, OFFSET_MAX))

HEADER_1 = bytes.fromhex(
    "0000018bcfe5680000000000000000070000018bcfe569f400000000000000050000000001b055150002000000cd0000019b014e134eebe9db"
    "3879"
)
BLOB_1 = bytes.fromhex(
    "28b52ffd609b001d060062881d2990b5690cc76fad9ed8dddd81678b0ffde4f7af2cb1ccd8edfcbf552ddb0df65c689fccda6f7f22650a91d61e"
    "c4333d4884a8ea49cbeaa0331f25a5084e7fd35ceb0be8df7d363bf0af233a8770a229aa0846d9f80bcffcef633e37e5cfd8c03a38c317a3acca"
    "972e825503fed59a0030de57c9bf012520f022b2f2b8059c4f9df801bfd539617181e9b99519d3e01e98bb3e1e6b086f9340408bc84cea69af25"
    "cc0ac6ccfa8f76a6826d2bbb0b8719502c0664ce10c028b3d921994c66a109"
)
DUE_MS = 1_700_000_000_000
RECORDS_1 = [
    Held(
        DUE_MS, 7, "orders", -1, b"key", b"value", [("a", b"1"), ("b", None)], "policy@1", None, 0, -1, [], -1,
        "orders-dlq", 9,
    ),
    Held(
        DUE_MS + 500, 5, "orders", 2, None, None, [], "policy@2", b"t/0/1", 3, DUE_MS - 1_000, [("tickover-id", b"x")],
        DUE_MS + 9_000, "orders-dlq", 1, 4,
    ),
]  # fmt: skip

POLICY_1 = (
    b'{"schema":1,"write":"w","name":"orders-retry","expected":0,"author":"me","managed_by":"api","policy":'
    b'{"name":"orders-retry","match":{"topics":["orders-retry"],"headers":{}},"retry":{"attempts":5,'
    b'"backoff":{"kind":"fixed","delay":"10s","jitter":"none"},"retry_on":["*"],"give_up_on":[]},"target":{"allow":[]}}}'
)


def newer(header: bytes, by: int = 1) -> bytes:
    """The header as a program with a later format would write it."""
    return header[:50] + bytes([FORMAT + by]) + header[51:]


def test_a_chunk_of_format_1_is_read() -> None:
    header = read_header(HEADER_1, FINE)
    assert (header.rows, header.first, header.last) == (2, Position(DUE_MS, 7), Position(DUE_MS + 500, 5))
    assert ChunkCodec().unpack(header.blob(BLOB_1), *EVERYTHING) == RECORDS_1


@pytest.mark.parametrize(
    "header", [newer(HEADER_1), newer(HEADER_1, 200), newer(HEADER_1) + b"more", newer(HEADER_1)[:51]]
)
def test_a_chunk_of_a_newer_format_is_refused_and_not_taken_for_damaged(header: bytes) -> None:
    with pytest.raises(NewerOverflowFormat, match="run the newer one"):
        read_header(header, COARSE)


def test_a_damaged_header_is_not_taken_for_newer() -> None:
    for header in (b"", HEADER_1[:50], HEADER_1[:58], HEADER_1[:50] + b"\0" + HEADER_1[51:]):
        with pytest.raises(HeaderFormatError):
            read_header(header, FINE)


def test_a_policy_of_schema_1_is_read() -> None:
    change = decode_change(POLICY_1, 0)
    assert change is not None
    assert change.policy is not None
    assert change.policy.retry is not None
    assert (change.name, change.expected, change.policy.retry.attempts) == ("orders-retry", 0, 5)


@pytest.mark.parametrize(
    ("read", "refusal"),
    [
        (lambda: decode(b"TL\xff\x00anything"), NewerLedgerFormatError),
        (lambda: decode_metadata(5, '{"tickover":999}'), NewerLedgerFormatError),
        (lambda: decode_change(b'{"schema":%d,"anything":[]}' % (SCHEMA + 1), 3), NewerSchema),
        (lambda: read_header(newer(HEADER_1), FINE), NewerOverflowFormat),
    ],
)
def test_what_is_newer_is_refused_in_words_that_help(read: Callable[[], object], refusal: type[Exception]) -> None:
    with pytest.raises(refusal, match=r"newer tickover.*run the newer one"):
        read()
