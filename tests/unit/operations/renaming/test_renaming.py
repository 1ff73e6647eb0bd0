"""Changes of a rename to commits, blocks and records; nobody goes on from a commit that it has marked."""

import json
from typing import Any
from unittest.mock import Mock

import pytest

from sidecar.ledger.block import NOTHING_SETTLED, Block, Entries, decode, encode
from sidecar.ledger.commit_metadata import (
    METADATA_BYTES_MAX,
    CommitState,
    GroupRenamedError,
    RenameMark,
    decode_mark,
    decode_metadata,
    encode_mark,
    encode_metadata,
)
from sidecar.ledger.frame import LedgerFormatError
from sidecar.model.record import Position
from sidecar.operations.renaming.errors import RenameRefusedError
from sidecar.operations.renaming.renaming import Rename
from sidecar.operations.renaming.rewriting import (
    Places,
    change_value,
    renamed_block,
    renamed_state,
    schedule_value,
    wanted_places,
)
from sidecar.operations.renaming.topic_copy import PORTION_BYTES_MAX, portions
from sidecar.operations.schedules.schedule_book import ScheduleBook
from sidecar.settings.settings import Settings
from tests.unit.schedule_world import schedule

STATE = CommitState(
    5, Position(1_763_720_000_000, 7), 8, 20, 10, 11, 12, "source-id", 3, 1_763_730_000_000, 6, "old-id", 8, 14,
)  # fmt: skip
ENTRIES = Entries([7], [9_000], ["p@1"], ["mail"], [-1], [0], [0], [0], [""], {7: "id"}, {7: 3})
BLOCK = Block(
    group="old", topic="delays", topic_id="topic-id", partition=2, written_ms=1_000, low=5,
    watermark=Position(8_000, 6), acknowledged=4, overflow_held=1, runs=((0, 1),), number=5,
    settled=NOTHING_SETTLED, entries=ENTRIES,
)  # fmt: skip


def copied(wanted: tuple[int, ...], *pairs: tuple[int, int]) -> Places:
    places = Places(wanted)
    for old, new in pairs:
        places.copied(old, new)
    return places


def test_a_pointer_goes_to_the_copy_of_the_first_block_at_or_after_its_place() -> None:
    places = copied((-1, 3, 4, 9), (2, 0), (4, 1), (7, 3))
    assert [places.following(place) for place in (-1, 3, 4, 9)] == [-1, 1, 1, 4]


def test_a_commit_has_the_places_of_the_copy_and_is_otherwise_as_it_was() -> None:
    places = copied(wanted_places(STATE), (9, 0), (12, 1), (20, 3))
    state = renamed_state(STATE, places, 9, "new-id", 8)
    assert (state.recovery_pointer, state.rebuild_pointer, state.block_offset) == (1, 1, 3)
    assert (state.ledger_id, state.ledger_partitions) == ("new-id", 8)
    assert (state.low, state.watermark, state.acknowledged, state.topic_id) == (5, STATE.watermark, 8, "source-id")


def test_a_block_that_retention_took_is_not_looked_for_and_one_that_is_missing_still_is() -> None:
    places = copied(wanted_places(STATE), (21, 0), (22, 1))
    assert renamed_state(STATE, places, 21, "new-id", 8).block_offset == -1
    assert renamed_state(STATE, places, 20, "new-id", 8).block_offset == 2  # the copy's end: a recovery misses it


def test_a_block_differs_in_its_group_alone() -> None:
    value = renamed_block(encode(BLOCK), "new")
    found, before = decode(value), decode(encode(BLOCK))
    assert found.group == "new"
    assert encode(before) == renamed_block(value, "old")


def test_what_is_no_block_stays_and_a_newer_one_is_refused() -> None:
    assert renamed_block(b"garbage", "new") == b"garbage"
    assert renamed_block(None, "new") is None
    with pytest.raises(RenameRefusedError, match="newer tickover"):
        renamed_block(b"TL\x7f\x00", "new")


def test_a_marked_commit_stops_every_sidecar_and_keeps_what_it_replaces() -> None:
    text = encode_mark(RenameMark("old", "new", encode_metadata(STATE)))
    with pytest.raises(GroupRenamedError, match="tickover group rename old new"):
        decode_metadata(5, text)
    mark = decode_mark(text)
    assert mark is not None
    assert decode_metadata(5, mark.state) == STATE
    assert len(text) <= METADATA_BYTES_MAX


def test_a_commit_is_no_mark_and_a_damaged_mark_is_neither() -> None:
    assert decode_mark(encode_metadata(STATE)) is None
    assert decode_mark("") is None
    with pytest.raises(LedgerFormatError):
        decode_metadata(5, encode_mark(RenameMark("old", "new"))[:-4])


def written(**changes: object) -> bytes:
    document = {"schema": 1, "version": 3, "author": "a", "time": 5, "since": 100, "began": 3, "source": "s"}
    return json.dumps({**document, "schedule": schedule().model_dump(mode="json"), **changes}).encode()


@pytest.mark.parametrize(
    "value", [written(), written(began=2), written(rewound=150), written(schedule=None), b"{", b""]
)
def test_a_schedule_counts_from_the_same_moment_in_the_copy(value: bytes) -> None:
    key = f"{schedule().name}/schedule".encode()
    before, after = ScheduleBook(), ScheduleBook()
    before.apply(key, value, 170)
    after.apply(key, schedule_value(key, value, 170) or b"", 0)  # the copy has no append time
    assert after.get(schedule().name) == before.get(schedule().name)


def test_receipts_of_a_change_are_looked_for_from_the_copy_s_start() -> None:
    progress = json.dumps({"state": "done", "receipts_from": 17}).encode()
    assert json.loads(change_value(b"id/progress", progress, 0) or b"") == {"state": "done", "receipts_from": 0}
    assert change_value(b"id/plan", progress, 0) == progress
    assert change_value(b"id/progress", b"garbage", 0) == b"garbage"


class Record:
    def __init__(self, size: int) -> None:
        self.size = size

    def value(self) -> bytes:
        return bytes(self.size)


def test_a_transaction_has_no_more_than_it_can_take_in_its_time_but_always_a_record() -> None:
    half = PORTION_BYTES_MAX // 2
    records: list[Any] = [Record(size) for size in (1, half, half, PORTION_BYTES_MAX + 1, 1, 1)]
    sizes = [[len(one.value() or b"") for one in portion] for portion in portions(records)]
    assert sizes == [[1, half], [half], [PORTION_BYTES_MAX + 1], [1, 1]]
    assert list(portions([])) == []


def test_what_is_signed_for_the_old_group_is_not_renamed() -> None:
    old, new = (Settings.model_validate({"group": name, "redis": {"signing_key_file": "keys"}}) for name in "ab")
    clients: Any = Mock()
    with pytest.raises(RenameRefusedError, match=r"unset redis\.signing_key_file"):
        Rename(old, new, clients, lambda _: None).look()
    assert clients.mock_calls == []


def test_what_is_in_the_way_comes_with_the_command_that_removes_it_and_its_login() -> None:
    kafka = {"bootstrap_servers": "k:9092", "client": {"security.protocol": "SSL"}}
    old, new = (Settings.model_validate({"group": name, "kafka": kafka}) for name in ("old", "new"))
    clients: Any = Mock()
    clients.commits.members.return_value = 0
    clients.commits.read.return_value = {("delays", 0): (5, "")}
    with pytest.raises(RenameRefusedError) as caught:
        Rename(old, new, clients, lambda _: None).look()
    words, command, *note = str(caught.value).splitlines()
    assert words.startswith("group new has commits of its own")
    options = "--bootstrap-server k:9092 --command-config admin.properties"
    assert command == f"kafka-consumer-groups.sh {options} --delete --group new"
    assert note == ["admin.properties has the login of somebody who may do this:", "security.protocol=SSL"]
