"""Remembered decisions change nothing: a run of records is decided as each of them would be alone."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.headers import DELAY, DELIVER_AT, DUE, ID, ORIGIN, SPREAD, TARGET, TARGET_PARTITION
from policies.model import Policy, Versioned
from policies.table import PolicyTable
from sidecar.engine.intake import decision_cache
from sidecar.engine.intake.decide import Decider, HeaderLimits
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.progress import PromotionWindows
from sidecar.engine.partition.wheel import Wheel
from sidecar.model.header_codec import split
from sidecar.model.record import AwaitingTarget, Diverted, Headers, Held, Position, TopicPartition
from tests.examples import examples

STAMP_MS = 1_700_000_000_000
LIMITS = HeaderLimits(headers_max=8, header_bytes_max=150, quarantine="quarantine")
PARTITIONS = {"mail": 3, "other": 1}

NAMES = st.sampled_from([DELAY, TARGET, TARGET_PARTITION, DELIVER_AT, SPREAD, ID, ORIGIN, DUE, "a", "b"])
VALUES = st.sampled_from(
    [None, b"", b"5s", b"10", b"9d", b"mail", b"other", b"nowhere", b"0", b"2", b"\xff", b"x" * 90, b"1700000009000"]
)
ANY = st.lists(st.tuples(NAMES, VALUES), max_size=9)
USUAL = st.tuples(VALUES, VALUES, VALUES).map(
    lambda values: [("a", values[0]), (DELAY, values[1]), (TARGET, values[2])]
)


@dataclass(frozen=True)
class Record:
    """As the client gives it."""

    user: Headers
    stamp: tuple[int, int]

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def headers(self) -> Headers | None:
        return list(self.user) or None

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"value"


def table(version: int, conditions: bool, delay_max: str, spread: str = "0") -> PolicyTable:
    match = {"topics": ["reminders"], "headers": {"a": "5*"} if conditions else {}}
    content = {
        "name": "reminders",
        "match": match,
        "delay": {"default": f"{version}s", "max": delay_max, "spread": spread, "spread_max": "9s"},
        "target": {"topic": "mail", "allow": ["*"]},
    }
    policy = Versioned(Policy.model_validate(content), version, "me", 0, "api")
    return PolicyTable(version, MappingProxyType({"reminders": policy}))


TABLES = [table(1, False, "10d"), table(2, False, "8s"), table(3, True, "10d"), table(4, False, "10d", "7s")]
STAMPS = st.sampled_from([(1, STAMP_MS), (1, STAMP_MS + 77), (0, 0), (1, -1), (2, 1 << 60)])
# A few kinds of headers, each of them several times.
KINDS = st.lists(ANY | USUAL, min_size=1, max_size=3)
RUNS = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 2), STAMPS), min_size=1, max_size=12), st.sampled_from(TABLES)),
    min_size=1,
    max_size=4,
)


def decider() -> Decider:
    return Decider(LIMITS, PARTITIONS, lambda version: TABLES[version - 1])


def counting(watched: Decider) -> list[Headers]:
    """Headers of the records that are decided one by one from now on."""
    decided: list[Headers] = []
    decide = Decider._decide

    def counted(one: SourcePartition, record: Any, offset: int, now: PolicyTable, headers: Headers) -> Any:
        decided.append(headers)
        return decide(watched, one, record, offset, now, headers)

    watched._decide = counted  # type: ignore[method-assign, assignment]
    return decided


def lane() -> SourcePartition:
    return SourcePartition(TopicPartition("reminders", 0), Wheel(STAMP_MS), PromotionWindows(Position(0, 0)))


def plain_lane() -> SourcePartition:
    """One whose records were all read before a crash: nothing is remembered of those."""
    plain = lane()
    plain.recovered_until = 1 << 60
    return plain


@settings(max_examples=examples(300))
@given(KINDS, RUNS)
@example([[(DELAY, b"5s")]], [([(0, (1, STAMP_MS)), (0, (1, -1)), (0, (0, 0))], TABLES[0])])
@example([[(DELAY, b"9s")]], [([(0, (1, STAMP_MS))], TABLES[0]), ([(0, (1, STAMP_MS))], TABLES[1])])
@example([[("a", b"5s"), (DELAY, b"5s")], [("a", b"x"), (DELAY, b"5s")]], [([(0, (1, 9)), (1, (1, 9))], TABLES[2])])
@example([[(DELIVER_AT, b"1700000009000")]], [([(0, (1, STAMP_MS)), (0, (1, STAMP_MS + 77))], TABLES[0])])
@example([[(DELAY, b"5s")]], [([(0, (1, STAMP_MS)), (0, (1, STAMP_MS)), (0, (1, STAMP_MS))], TABLES[3])])
@example([[(SPREAD, b"5s")]], [([(0, (1, STAMP_MS)), (0, (1, STAMP_MS)), (0, (1, STAMP_MS))], TABLES[0])])
@example([[(DELAY, b"5s"), (DELAY, b"9d")]], [([(0, (1, STAMP_MS)), (0, (1, STAMP_MS))], TABLES[0])])
@example([[("a", b""), (DELAY, b"5s")], [("a", b"x" * 170), (DELAY, b"5s")]], [([(0, (1, 9)), (1, (1, 9))], TABLES[0])])
def test_a_run_is_decided_as_each_record_alone(
    kinds: list[Headers], runs: list[tuple[list[tuple[int, tuple[int, int]]], PolicyTable]]
) -> None:
    remembering, offset = decider(), 0
    for picks, now in runs:
        records: Any = [Record(kinds[kind % len(kinds)], stamp) for kind, stamp in picks]
        offsets = range(offset, offset + len(records))
        offset += len(records)
        held, others, named = remembering.decide_run(lane(), records, offsets, now, STAMP_MS)
        alone = [
            decider().decide_run(plain_lane(), [r], [o], now, STAMP_MS) for r, o in zip(records, offsets, strict=True)
        ]
        assert held == [parcel for parcels, _, _ in alone for parcel in parcels]
        assert others == [parcel for _, parcels, _ in alone for parcel in parcels]
        assert named == [parcel for _, _, parcels in alone for parcel in parcels]


def test_the_second_of_a_kind_is_remembered_and_takes_its_own_time() -> None:
    remembering = decider()
    asked: Headers = [("a", b"1"), (DELAY, b"5s"), (TARGET, b"other")]
    records: Any = [Record(asked, (1, STAMP_MS)), Record(asked, (1, STAMP_MS + 1_234))]
    held, _, _ = remembering.decide_run(lane(), records, [0, 1], TABLES[0], STAMP_MS)
    assert [record.due_ms for record in held] == [STAMP_MS + 5_000, STAMP_MS + 6_234]
    remembered = remembering._recall.of("reminders", TABLES[0])
    assert list(remembered.answers) == [((DELAY, b"5s"), (TARGET, b"other"))]


def test_what_stands_elsewhere_or_has_another_name_is_found_the_next_time() -> None:
    remembering = decider()
    kinds: list[Headers] = [
        [("a", b"1"), (DELAY, b"5s"), (TARGET, b"other")],
        [(DELAY, b"5s"), ("a", b"1"), (TARGET, b"other")],
        [(DELAY, b"5s"), (TARGET, b"other"), ("b", None)],
        [(DELAY, b"5s"), (TARGET, b"other")],
    ]
    for asked in kinds:
        records: Any = [Record(asked, (1, STAMP_MS))] * 2
        decided = counting(remembering)
        first, second = remembering.decide_run(lane(), records, [0, 1], TABLES[0], STAMP_MS)[0]
        assert second == first._replace(offset=1)
        assert len(decided) == 1  # the first of them
    assert len(remembering._recall.of("reminders", TABLES[0]).answers) == 1  # they all ask in the same words


def test_a_topic_without_headers_is_remembered() -> None:
    remembering, records = decider(), [Record([], (1, STAMP_MS)), Record([], (1, STAMP_MS))]
    decided = counting(remembering)
    held, _, _ = remembering.decide_run(lane(), records, [0, 1], TABLES[0], STAMP_MS)  # type: ignore[arg-type]
    assert [record.due_ms for record in held] == [STAMP_MS + 1_000] * 2
    assert len(decided) == 1


def test_a_target_that_went_away_is_asked_about_again() -> None:
    partitions = {"mail": 1}
    remembering = Decider(LIMITS, partitions, lambda version: TABLES[version - 1])
    record: Any = Record([(DELAY, b"5s")], (1, STAMP_MS))
    assert isinstance(remembering.decide_run(lane(), [record], [0], TABLES[0], STAMP_MS)[0][0], Held)
    del partitions["mail"]
    assert isinstance(remembering.decide_run(lane(), [record], [1], TABLES[0], STAMP_MS)[1][0], AwaitingTarget)


def test_no_policy_lets_a_record_into_an_own_topic() -> None:
    """A record in the policies topic would be a policy."""
    own = frozenset({"other"})
    guarded = Decider(LIMITS, PARTITIONS, lambda version: TABLES[version - 1], own)
    asked: Any = [Record([(DELAY, b"5s"), (TARGET, name)], (1, STAMP_MS)) for name in (b"other", b"mail", b"other")]
    held, others, _ = guarded.decide_run(lane(), asked, [0, 1, 2], TABLES[0], STAMP_MS)
    assert [record.target for record in held] == ["mail"]
    gone = [(parcel.topic, parcel.reason) for parcel in others if isinstance(parcel, Diverted)]
    assert gone == [("quarantine", "target_not_allowed")] * 2


def test_what_is_remembered_is_bounded() -> None:
    remembered = decision_cache.TopicDecisions("reminders", TABLES[0])
    held = Held(0, 0, "mail", -1, None, None, [], "p@1", None, 0, -1, [], -1, "dlq", 0)

    def note(*headers: tuple[str, bytes | None]) -> None:
        remembered.note([*headers], split([*headers]), 0, held)

    for number in range(decision_cache.ANSWERS_MAX + 10):
        note((f"name-{number}", b""), (DELAY, b"%d" % number))
        assert len(remembered.answers) <= decision_cache.ANSWERS_MAX
        assert len(remembered.own_names) <= decision_cache.NAMES_MAX
    remembered.answers.clear()
    note((DELAY, bytes(decision_cache.BYTES_MAX)))
    note(("n" * decision_cache.BYTES_MAX, b""), (DELAY, b"5s"))
    note(*[("n", b"")] * decision_cache.HEADERS_MAX, (DELAY, b"5s"))
    assert not remembered.answers
    assert len(remembered.forms) == 1
    note(("a", bytes(2 * decision_cache.BYTES_MAX)), (DELAY, b"5s"))  # a token, say: its value is not kept
    assert len(remembered.answers) == 1
