"""Offsets of a lane whose log was cut back, and how a cut is found."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.model.log_cuts import (
    CUTS_MAX,
    MARKS_SPAN,
    NO_CUTS,
    Cuts,
    Marks,
    ReadMark,
    TooManyCuts,
    below,
    find_cut,
    noted,
)


@dataclass
class Source:
    """A log whose leader changes. A record has its leader's epoch and the time at which it was written."""

    records: list[ReadMark] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epoch: int = 0
    now_ms: int = 100_000_000_000

    def write(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += 1
            self.records.append(ReadMark(self.end, self.epoch, self.now_ms))
            self.end += 1

    def cut(self, end: int, epochs: int = 1) -> None:
        self.records = [record for record in self.records if record.offset < end]
        self.end = min(self.end, end)
        self.epoch += epochs

    def look(self, offset: int) -> ReadMark | None:
        return next((record for record in self.records if record.offset >= offset), None)

    def marks(self, *offsets: int) -> Marks:
        return tuple(record for record in self.records if record.offset in offsets)

    def find(self, marks: Sequence[ReadMark], same_topic: bool = True) -> int | None:
        return find_cut(marks, (self.start, self.end), same_topic, self.look)


def written(count: int = 100) -> Source:
    source = Source()
    source.write(count)
    return source


def test_a_log_that_is_as_it_was_read_was_not_cut() -> None:
    source = written()
    marks = source.marks(99)
    assert source.find(marks) is None
    source.epoch += 1
    source.write(50)
    assert source.find(marks) is None, "a new leader alone has taken nothing"
    source.start = 100
    assert source.find(marks) is None, "retention took it"


@pytest.mark.parametrize("since", [0, 1, 5, 9, 10, 20, 300])
def test_what_came_since_a_log_was_cut_back_is_told_from_what_was_read(since: int) -> None:
    source = written()
    marks = source.marks(50, 99)
    source.cut(90)
    source.write(since)
    assert source.find(marks) == 90
    assert source.find(marks[1:]) == 90, "the last mark is enough"


def test_a_cut_below_all_that_is_known_of_the_log_is_found_by_the_epochs_of_its_leaders() -> None:
    source = written()
    marks = source.marks(80, 99)
    source.cut(30)
    source.write(100)
    assert source.find(marks) == 30


def test_a_log_that_was_lost_as_a_whole_is_new_from_its_start() -> None:
    source = written()
    marks = source.marks(99)
    source.cut(0)
    assert source.find(marks) == 0
    source.write(200)
    assert source.find(marks) == 0


@pytest.mark.parametrize("since", [0, 10, 99, 100, 300])
def test_another_topic_of_the_name_is_new_from_its_start_where_brokers_give_no_ids(since: int) -> None:
    marks = written().marks(40, 99)
    another = Source(now_ms=200_000_000_000)
    another.write(since)
    assert another.find(marks, same_topic=False) == 0, "its leader's epoch begins with 0 again"


def test_without_a_new_epoch_what_may_be_new_is_taken_as_new() -> None:
    source = written()
    marks = source.marks(60, 99)
    source.cut(90, epochs=0)
    source.write(20)
    assert source.find(marks) == 61, "the highest record that is known to be as it was"


def test_a_record_that_compaction_or_a_transaction_took_is_no_cut() -> None:
    source = written()
    marks = source.marks(99)
    source.write(5)
    del source.records[99]
    assert source.find(marks) is None
    source.cut(95)
    source.write(3)
    source.end += 4  # the ends of transactions
    source.write(1)
    assert source.find(marks) == 95


def test_of_marks_the_last_and_some_older_ones_are_kept() -> None:
    marks: Marks = ()
    for offset in range(0, 20 * MARKS_SPAN, 10):
        marks = noted(marks, ReadMark(offset, 0, 0))
        assert len(marks) <= 3
    assert marks[-1].offset == 20 * MARKS_SPAN - 10
    assert MARKS_SPAN <= marks[-1].offset - marks[0].offset <= 2 * MARKS_SPAN
    assert noted(marks, ReadMark(5, 1, 1)) == marks, "it is read again"
    assert below(marks, marks[-1].offset) == marks[:-1]


def test_a_lane_counts_on_where_its_log_was_cut_back() -> None:
    cuts = NO_CUTS.then(90, 100)
    assert list(map(cuts.lane_offset, (0, 89, 90, 109))) == [0, 89, 100, 119]
    assert list(map(cuts.log_offset, (0, 89, 90, 99, 100, 119))) == [0, 89, 90, 90, 90, 109]
    assert cuts.lost() == [(90, 100)]
    assert not NO_CUTS
    assert NO_CUTS.lane_offset(7) == NO_CUTS.log_offset(7) == 7


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=12))
def test_no_lane_offset_ever_means_two_records(steps: list[tuple[int, int]]) -> None:
    """(records written and read, then how far the log is cut back)"""
    cuts, made = NO_CUTS, 0
    log: list[int] = []
    read: list[int] = []
    for count, cut in steps:
        for _ in range(count):
            offset = cuts.lane_offset(len(log))
            log.append(made)
            assert offset == len(read)
            read.append(made)
            made += 1
        end = max(len(log) - cut, 0)
        if end < len(log):
            cuts = cuts.then(end, len(read))
            del log[end:]
        lost = {offset for first, stop in cuts.lost() for offset in range(first, stop)}
        for offset, record in enumerate(read):
            assert cuts.is_lost(offset) == (offset in lost) == (record not in log)
            if offset not in lost:
                assert log[cuts.log_offset(offset)] == record
                assert cuts.lane_offset(cuts.log_offset(offset)) == offset


def test_so_many_cuts_that_no_commit_can_say_them_are_refused() -> None:
    cuts = Cuts(tuple((1_000 + number, number) for number in range(CUTS_MAX)))
    with pytest.raises(TooManyCuts):
        cuts.then(500, 5_000)
    assert cuts.then(3, 5_000).pairs == ((1_000, 0), (1_001, 1), (1_002, 2), (5_000, 3))


def test_what_nobody_knows_to_have_read_needs_no_cut() -> None:
    assert NO_CUTS.then(314, 299) is NO_CUTS, "lane offset 299 is the log's 299, which is there"
    cuts = NO_CUTS.then(90, 100)
    assert cuts.then(95, 105) is cuts
    assert cuts.then(95, 106) == Cuts(((100, 90), (106, 95)))
