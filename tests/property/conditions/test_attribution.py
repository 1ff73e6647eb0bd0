"""Laws of attribution: the parts are the lateness, whole and once, and nothing is claimed that wasn't recorded."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.conditions.attribution import Cause, Late, Part, Recorded, Span, attributed
from sidecar.conditions.time_ranges import common, united, without
from sidecar.model.condition import OF_PARTITIONS, OF_TARGETS, Kind, Subject
from sidecar.model.record import TopicPartition

LANE, OTHER = TopicPartition("reminders", 0), TopicPartition("reminders", 1)
END = 60
RUNNING, RECOVERING = Subject(Kind.RUNNING, *LANE), Subject(Kind.RECOVERING, *LANE)
times = st.integers(0, END)
ranges = st.lists(st.tuples(times, times), max_size=8)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    kind = draw(st.sampled_from(Kind))
    if kind in OF_PARTITIONS:
        subject = Subject(kind, *draw(st.sampled_from((LANE, OTHER))))
    else:
        subject = Subject(kind, draw(st.sampled_from(("mail", "push"))) if kind in OF_TARGETS else "")
    begin, end = sorted(draw(st.tuples(times, times)))
    run = draw(st.sampled_from("ab"))
    return Span(subject, begin, end, run, f"replica-{run}")


@st.composite
def lates(draw: st.DrawFn) -> Late:
    due_ms, until_ms = draw(times), draw(times)
    written_ms = draw(st.one_of(st.just(-1), st.integers(0, until_ms)))
    return Late(
        LANE, "mail", due_ms, until_ms, written_ms, draw(st.booleans()), draw(st.sampled_from((True, False, None)))
    )


recordings = st.builds(
    Recorded, st.lists(spans(), max_size=12), st.integers(END, END + 5), st.sampled_from(("", "Redis is away"))
)


def had(recorded: Recorded, instant: int, *kinds: Kind, run: str = "") -> bool:
    """Whether some run had the partition in one of these ways during this millisecond."""
    return any(
        span.subject.kind in kinds and span.subject[1:] == LANE and span.from_ms <= instant < span.to_ms
        for span in recorded.spans
        if run in ("", span.run)
    )


def was_let_go(recorded: Recorded, instant: int, replica: str) -> bool:
    """Whether this replica had let go of the partition in order, and nobody began with it since."""
    for one in recorded.spans:
        if one.subject != Subject(Kind.REVOKED, *LANE) or one.replica != replica or one.from_ms > instant:
            continue
        owners = [span for span in recorded.spans if span.subject in (RUNNING, RECOVERING)]
        others = any(span.run != one.run and span.from_ms <= instant and span.to_ms > one.from_ms for span in owners)
        again = any(span.run == one.run and one.from_ms < span.from_ms <= instant for span in owners)
        if not others and not again:
            return True
    return False


def is_recorded(part: Part, instant: int, late: Late, recorded: Recorded) -> bool:
    """Naively, and by the millisecond: whether what the part says is what was recorded."""
    owned = had(recorded, instant, Kind.RUNNING, Kind.RECOVERING)
    match part.cause:
        case Cause.SETTLE if late.written_ms >= 0 and instant >= late.written_ms:
            return True
        case Cause.UNOWNED:
            before = any(had(recorded, one, Kind.RUNNING, Kind.RECOVERING) for one in range(instant))
            away = any(
                span.subject.kind is Kind.REDIS and span.from_ms <= instant < span.to_ms for span in recorded.spans
            )
            return before and not owned and not away and not recorded.problem
        case Cause.REVOKED:
            return not recorded.problem and was_let_go(recorded, instant, part.replica)
        case Cause.UNACCOUNTED:
            return owned
        case Cause.NOT_RECORDED:
            return not owned
    kind = Kind(part.cause)
    for span in recorded.spans:
        if span.subject.kind is not kind or span.replica != part.replica or not span.from_ms <= instant < span.to_ms:
            continue
        if kind in OF_PARTITIONS:
            fits = span.subject[1:] == LANE
        else:
            fits = span.subject.topic in ("", late.target) and had(
                recorded, instant, Kind.RUNNING, Kind.RECOVERING, run=span.run
            )
        if fits:
            return True
    return False


@given(late=lates(), recorded=recordings)
def test_the_parts_are_the_lateness_in_order_and_once(late: Late, recorded: Recorded) -> None:
    parts = attributed(late, recorded)
    assert sum(part.to_ms - part.from_ms for part in parts) == max(late.until_ms - late.due_ms, 0)
    at_ms = late.due_ms
    for part in parts:
        assert part.from_ms == at_ms < part.to_ms
        at_ms = part.to_ms


@given(late=lates(), recorded=recordings)
def test_nothing_is_claimed_that_was_not_recorded(late: Late, recorded: Recorded) -> None:
    for part in attributed(late, recorded):
        for instant in range(part.from_ms, part.to_ms):
            assert is_recorded(part, instant, late, recorded), (part, instant)


@given(late=lates(), recorded=recordings)
def test_what_cannot_concern_the_record_is_no_cause(late: Late, recorded: Recorded) -> None:
    causes = {part.cause for part in attributed(late, recorded)}
    if late.was_far is False:
        assert causes.isdisjoint((Cause.REDIS, Cause.REBUILD))
    if not late.is_retry:
        assert Cause.BREAKER not in causes
    if recorded.problem:
        assert causes.isdisjoint((Cause.UNOWNED, Cause.REVOKED))


@given(late=lates(), recorded=recordings)
def test_where_it_is_not_known_whether_redis_had_it_anything_else_comes_first(late: Late, recorded: Recorded) -> None:
    def times_of(was_far: bool | None, *of_redis: Cause) -> list[tuple[int, int]]:
        parts = attributed(late._replace(was_far=was_far), recorded)
        return united([part[:2] for part in parts if part.cause in of_redis])

    known = times_of(False, *(set(Cause) - {Cause.UNACCOUNTED, Cause.NOT_RECORDED}))
    unknown = times_of(None, Cause.REDIS, Cause.REBUILD)
    assert not common(unknown, known)
    assert united([*known, *unknown]) == united([*known, *times_of(True, Cause.REDIS, Cause.REBUILD)])


@given(late=lates(), recorded=recordings, outage=st.tuples(times, times))
def test_an_outage_of_the_target_is_never_told_as_its_rate_or_breaker(
    late: Late, recorded: Recorded, outage: tuple[int, int]
) -> None:
    begin, end = sorted(outage)
    kinds = (Kind.SUSPENDED, Kind.RATE, Kind.BREAKER)
    during = [Span(Subject(kind, late.target), begin, end, "a", "replica-a") for kind in kinds]
    owner = Span(Subject(Kind.RUNNING, *LANE), 0, END, "a", "replica-a")
    for part in attributed(late, recorded._replace(spans=[*recorded.spans, owner, *during])):
        if part.cause in (Cause.RATE, Cause.BREAKER):
            assert not common([part[:2]], united([(begin, end)]))


def had_by(run: str, kind: Kind, begin: int, end: int) -> Span:
    return Span(Subject(kind, *LANE), begin, end, run, f"replica-{run}")


def causes_of(spans: list[Span], now_ms: int = END) -> list[tuple[str, int, int]]:
    return [
        (part.cause, part.from_ms, part.to_ms)
        for part in attributed(Late(LANE, "mail", 0, END), Recorded(spans, now_ms))
    ]


STOPPING = [had_by("a", Kind.RUNNING, 0, 20), had_by("a", Kind.REVOKED, 12, 25)]  # it settles until 20


def test_a_replica_that_stops_and_the_next_one() -> None:
    spans = [*STOPPING, had_by("b", Kind.RECOVERING, 40, 45), had_by("b", Kind.RUNNING, 45, END)]
    told = [("unaccounted", 0, 12), ("revoked", 12, 40), ("recovering", 40, 45), ("unaccounted", 45, END)]
    assert causes_of(spans) == told
    killed = [span for span in spans if span.subject.kind is not Kind.REVOKED]
    assert causes_of(killed) == [("unaccounted", 0, 20), ("unowned", 20, 40), *told[2:]]


def test_a_replica_that_stops_and_no_next_one() -> None:
    assert causes_of(STOPPING) == [("unaccounted", 0, 12), ("revoked", 12, END)]


def test_a_next_one_that_is_killed_is_not_taken_for_the_stop_before() -> None:
    spans = [*STOPPING, had_by("b", Kind.RUNNING, 30, 40)]
    assert causes_of(spans) == [
        ("unaccounted", 0, 12), ("revoked", 12, 30), ("unaccounted", 30, 40), ("unowned", 40, END),
    ]  # fmt: skip


def test_a_next_one_whose_clock_is_behind() -> None:
    spans = [*STOPPING, had_by("b", Kind.RUNNING, 11, 40)]
    assert causes_of(spans) == [("unaccounted", 0, 40), ("unowned", 40, END)]


def test_a_partition_that_comes_back_to_the_replica_that_let_it_go() -> None:
    spans = [*STOPPING, had_by("a", Kind.RECOVERING, 30, END)]
    assert causes_of(spans) == [("unaccounted", 0, 12), ("revoked", 12, 30), ("recovering", 30, END)]


@given(one=ranges, other=ranges)
def test_sets_of_ranges_agree_with_sets_of_milliseconds(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    def instants(some: list[tuple[int, int]]) -> set[int]:
        return {instant for begin, end in some for instant in range(begin, end)}

    here, there = united(one), united(other)
    for some, meant in (
        (here, instants(one)),
        (common(here, there), instants(one) & instants(other)),
        (without(here, there), instants(one) - instants(other)),
    ):
        assert instants(some) == meant
        assert all(begin < end for begin, end in some)
        assert all(some[place][1] < some[place + 1][0] for place in range(len(some) - 1)) or some != here
        assert some == sorted(some)
