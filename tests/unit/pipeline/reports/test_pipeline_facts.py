"""A backtest sees a record as the engine does."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.reports.facts import facts_of
from policies.headers import COUNTED, FAILURE, ID, INSTRUCTIONS, ORIGIN, WRITTEN
from sidecar.model.header_codec import split

RESERVED = INSTRUCTIONS | FAILURE | COUNTED | WRITTEN | {ID, ORIGIN}
names = st.sampled_from(sorted(RESERVED)) | st.sampled_from(["tenant", "tickover-", "tickover-other", ""])
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=8)), max_size=12)


@given(headers)
def test_headers_are_sorted_as_by_the_engine(given_headers: list[tuple[str, bytes | None]]) -> None:
    by_engine = split(given_headers)
    facts = facts_of(("t", 1, 2), 3, given_headers)
    assert (list(facts.headers), dict(facts.controls)) == (by_engine.user, dict(by_engine.controls))
    assert facts[:4] == ("t", 1, 2, 3)
