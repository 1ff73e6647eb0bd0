"""Commit metadata: read back as written, ignored when somebody else's, refused when newer or damaged."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.ledger.block import LedgerFormatError, NewerLedgerFormatError
from sidecar.ledger.commit_metadata import METADATA_BYTES_MAX, CommitState, decode_metadata, encode_metadata
from sidecar.model.log_cuts import CUTS_MAX, Cuts, ReadMark
from sidecar.model.record import Position

INT64 = st.integers(-(1 << 63) + 1, (1 << 63) - 1)
OFFSETS = st.integers(0, 1 << 50)
STATES = st.builds(
    CommitState,
    low=INT64,
    watermark=st.builds(Position, INT64, INT64),
    acknowledged=INT64,
    block_offset=INT64,
    recovery_pointer=INT64,
    rebuild_pointer=INT64,
    overflow_held=INT64,
    topic_id=st.text(max_size=30),
    leader_epoch=INT64,
    rebuild_due_ms=INT64,
    partitions=INT64,
    ledger_id=st.text(max_size=30),
    ledger_partitions=INT64,
    first_change=INT64,
    read=st.lists(st.builds(ReadMark, INT64, INT64, INT64), max_size=3).map(tuple),
    cuts=st.lists(st.tuples(OFFSETS, OFFSETS), max_size=CUTS_MAX).map(tuple).map(Cuts),
)
STATE = CommitState(
    5, Position(1_763_720_000_000, 7), 8, 9, 10, 11, 12, "vL4xXyz0Q0mJp1n5cQmRrA", 3, 1_763_730_000_000, 6,
    "kB1aWq9PSlmT2yT3tJ0b4g", 8, 14, (ReadMark(3, 0, 1_763_720_000_000), ReadMark(6, 2, 1_763_720_000_001)),
)  # fmt: skip
TEXT = encode_metadata(STATE)


@given(STATES)
def test_any_state_comes_back_as_it_was_and_fits_a_commit(state):
    text = encode_metadata(state)

    assert decode_metadata(state.low, text) == state
    assert len(text.encode()) <= METADATA_BYTES_MAX


def test_the_text_is_the_documented_one():
    assert TEXT == (
        '{"tickover":2,"watermark":[1763720000000,7],"acknowledged":8,"block":9,"recovery":10,"rebuild":11,'
        '"overflow_held":12,"topic_id":"vL4xXyz0Q0mJp1n5cQmRrA","leader_epoch":3,"rebuild_due":1763730000000,'
        '"partitions":6,"ledger_id":"kB1aWq9PSlmT2yT3tJ0b4g","ledger_partitions":8,"first_change":14,'
        '"read":[[3,0,1763720000000],[6,2,1763720000001]]}'
    )


def test_where_a_log_was_cut_back_is_said_by_a_version_that_earlier_programs_refuse() -> None:
    cut = replace(STATE, cuts=Cuts(((100, 90), (120, 95))))
    text = encode_metadata(cut)
    assert text.startswith('{"tickover":3,')
    assert text.endswith(',"cuts":[[100,90],[120,95]]}')
    assert decode_metadata(5, text) == cut


def test_a_commit_of_before_cuts_were_looked_for_says_nothing_of_what_was_read() -> None:
    assert decode_metadata(5, TEXT[: TEXT.index(',"read"')] + "}") == replace(STATE, read=())


VERSION_1 = TEXT[: TEXT.index(',"ledger_id"')].replace(":2,", ":1,", 1) + "}"


def test_version_1_says_nothing_of_the_ledger() -> None:
    assert decode_metadata(5, VERSION_1) == replace(STATE, ledger_id="", ledger_partitions=0, first_change=0, read=())


@pytest.mark.parametrize("text", ["", "metadata", "{}", '{"other":1}', "[" * 4096, "\ud800", " " + TEXT])
def test_what_others_committed_says_nothing(text):
    assert decode_metadata(5, text) is None


def test_a_newer_version_stops_the_reader():
    with pytest.raises(NewerLedgerFormatError, match="version 4"):
        decode_metadata(5, TEXT.replace(":2,", ":4,", 1))


def test_earlier_versions_did_not_say_how_many_partitions_a_source_had() -> None:
    assert decode_metadata(5, VERSION_1.replace(',"partitions":6', "")) == replace(
        STATE, partitions=0, ledger_id="", ledger_partitions=0, first_change=0, read=()
    )


@pytest.mark.parametrize("field", json.loads(TEXT))
@pytest.mark.parametrize("wrong", [None, 1.5, True, [1], {"1": 1}, 1 << 63, [1, "2"], [1, 2, 3]])
def test_a_wrong_field_is_refused(field, wrong):
    fields = json.loads(TEXT)
    missing = {name: value for name, value in fields.items() if name != field} if field != "tickover" else fields
    left_out = (
        [] if field in ("partitions", "read") else [missing | {"tickover": wrong} if field == "tickover" else missing]
    )
    for damaged in (fields | {field: wrong}, *left_out):
        with pytest.raises(LedgerFormatError):
            decode_metadata(5, json.dumps(damaged, separators=(",", ":")))


@pytest.mark.parametrize(
    "text", [TEXT[:-1], '{"tickover":', '{"tickover":' + "[" * 4000, TEXT.replace(":2,", ":0,", 1)]
)
def test_damaged_metadata_is_refused(text):
    with pytest.raises(LedgerFormatError) as refusal:
        decode_metadata(5, text)
    assert not isinstance(refusal.value, NewerLedgerFormatError)


def test_metadata_that_kafka_would_refuse_is_not_written():
    with pytest.raises(ValueError, match="4095"):
        encode_metadata(CommitState(5, Position(1, 2), 3, 4, 5, 6, 7, "x" * 4096, 8))
