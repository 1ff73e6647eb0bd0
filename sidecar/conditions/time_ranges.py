"""Sets of time ranges: sorted, apart from each other, each (from, to) in epoch ms with from < to. Pure."""

from collections.abc import Iterable, Sequence

Range = tuple[int, int]


def united(ranges: Iterable[Range]) -> list[Range]:
    """The set of all times that are in some range; empty and reversed ranges hold none."""
    merged: list[Range] = []
    for begin, end in sorted(one for one in ranges if one[0] < one[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def common(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    """Times that are in both sets."""
    found: list[Range] = []
    here = there = 0
    while here < len(one) and there < len(other):
        begin, end = max(one[here][0], other[there][0]), min(one[here][1], other[there][1])
        if begin < end:
            found.append((begin, end))
        if one[here][1] < other[there][1]:
            here += 1
        else:
            there += 1
    return found


def without(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    """Times of the first set that aren't in the second."""
    left: list[Range] = []
    there = 0
    for begin, end in one:
        while there < len(other) and other[there][1] <= begin:
            there += 1
        at, place = begin, there
        while place < len(other) and other[place][0] < end:
            if at < other[place][0]:
                left.append((at, other[place][0]))
            at = max(at, other[place][1])
            place += 1
        if at < end:
            left.append((at, end))
    return left
