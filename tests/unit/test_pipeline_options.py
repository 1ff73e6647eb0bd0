"""What the jobs' commands have in common, without Spark."""

from itertools import islice

from pipeline.options import rounds


def test_without_a_time_between_there_is_one_round() -> None:
    assert len(list(rounds(0.0))) == 1


def test_with_a_time_between_there_is_always_another() -> None:
    assert len(list(islice(rounds(0.001), 3))) == 3
