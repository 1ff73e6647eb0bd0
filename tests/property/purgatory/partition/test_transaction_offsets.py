"""The last stable offset and the aborted transactions of a range, against a walk over the whole log."""

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.partition.transaction_offsets import TransactionOffsets
from tests.examples import examples

PRODUCERS = 3
actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["records", "commit", "abort"]), st.integers(0, PRODUCERS - 1)),
        st.tuples(st.just("replicate"), st.integers(0, 3)),
        st.tuples(st.just("plain"), st.just(0)),
    ),
    max_size=30,
)


class Naive:
    """Every offset with who wrote it, and transactions found by walking over them."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int]] = []
        self.high_watermark = 0

    def transactions(self) -> list[tuple[int, int, int | None, str]]:
        """(producer, first, marker's offset or None, end)."""
        found, first = [], dict[int, int]()
        for offset, (kind, producer) in enumerate(self.records):
            if kind == "records":
                first.setdefault(producer, offset)
            elif kind in ("commit", "abort") and producer in first:
                found.append((producer, first.pop(producer), offset, kind))
        return [*found, *((producer, start, None, "open") for producer, start in first.items())]

    def first_unstable(self) -> int | None:
        unstable = [start for _, start, end, _ in self.transactions() if end is None or end >= self.high_watermark]
        return min(unstable, default=None)

    def aborted(self, start: int, end: int) -> set[tuple[int, int]]:
        return {
            (producer, first)
            for producer, first, last, kind in self.transactions()
            if kind == "abort" and last is not None and last >= start and first < end
        }


@settings(deadline=None, max_examples=examples(80))
@given(steps=actions, cut=st.integers(0, 30), start=st.integers(0, 30), length=st.integers(0, 30))
def test_it_agrees_with_walking_over_the_log(steps, cut, start, length):
    naive, offsets = Naive(), TransactionOffsets()

    def check():
        assert offsets.first_unstable_offset == naive.first_unstable()
        found = {(ended.producer_id, ended.first_offset) for ended in offsets.aborted_between(start, start + length)}
        assert found == naive.aborted(start, start + length)

    for kind, value in steps:
        offset = len(naive.records)
        if kind == "replicate":
            naive.high_watermark = min(naive.high_watermark + value, offset)
            offsets.replicated_to(naive.high_watermark)
        else:
            naive.records.append((kind, value))
            if kind == "records":
                offsets.add_records(value, offset)
            elif kind != "plain":
                offsets.add_marker(value, offset, is_aborted=kind == "abort")
        check()
    del naive.records[max(cut, naive.high_watermark) :]
    offsets.truncate_to(len(naive.records))
    check()


def test_a_marker_at_the_high_watermark_is_not_replicated():
    offsets = TransactionOffsets()
    offsets.add_records(1, 0)
    offsets.add_marker(1, 1, is_aborted=False)
    offsets.replicated_to(1)
    assert offsets.first_unstable_offset == 0
    offsets.replicated_to(2)
    assert offsets.first_unstable_offset is None


def test_a_marker_without_records_ends_nothing_and_old_ones_are_forgotten():
    offsets = TransactionOffsets()
    offsets.add_marker(1, 0, is_aborted=True)
    assert offsets.aborted_between(0, 10) == []
    offsets.add_records(1, 1)
    offsets.add_marker(1, 2, is_aborted=True)
    assert len(offsets.aborted_between(0, 10)) == 1
    offsets.truncate_from_start(3)
    assert offsets.aborted_between(0, 10) == []


def test_a_transaction_that_ends_beyond_the_fetch_does_not_hide_the_next_one():
    offsets = TransactionOffsets()
    for producer, first in ((1, 0), (2, 1)):
        offsets.add_records(producer, first)
    for producer, marker in ((1, 3), (2, 5)):
        offsets.add_marker(producer, marker, is_aborted=True)
    assert [ended.producer_id for ended in offsets.aborted_between(0, 3)] == [1, 2]
