"""Problems of a group, in sentences: each with who, since when and how much, and the worst first."""

from typing import Any

import pytest

from sidecar.conditions.attribution import Sign
from sidecar.lookup.report import Rebuild, Report, Target, Wait
from sidecar.model.condition import Pausable, Pause, PauseKind
from sidecar.model.record import TopicPartition
from sidecar.overview.problems import PAUSES_NAMED_MAX, Fault, Level, problems_of
from tests.unit.report_world import NOW_MS, busy_report, report, seen

MINUTE_MS = 60_000


def only(*reports: Report, **fields: Any) -> Fault:
    """The one problem of such a group."""
    (problem,) = problems_of(seen(*reports, **fields))
    return problem


def test_of_a_group_that_is_well_nothing_is_said() -> None:
    assert problems_of(seen(report("a"), report("b", wheel=5, oldest_overdue_ms=900))) == []


def test_a_target_that_does_not_acknowledge_is_told_once_for_all_replicas() -> None:
    waits = (Wait(kind="suspended", topic="mail", since_ms=NOW_MS - 16 * MINUTE_MS),)
    targets = (Target(topic="mail", waiting=4_107),)
    problem = only(
        report("a", suspended=("mail",), targets=targets, waits=waits),
        report("b", suspended=("mail",), targets=targets),
    )
    assert (problem.level, problem.kind, problem.subject, problem.replicas) == (
        Level.BAD, "suspended", "mail", ("a", "b"),
    )  # fmt: skip
    assert problem.since_ms == NOW_MS - 16 * MINUTE_MS
    assert problem.text == (
        "mail has not acknowledged since 07:44:00 UTC (16 min). A queue of 8,214 messages waits; other targets go on. "
        "tickover tries again by itself."
    )


@pytest.mark.parametrize(("states", "word"), [(("open", "half_open"), "is open"), (("half_open",), "is half open")])
def test_a_breaker_is_as_open_as_the_most_open_one(states: tuple[str, ...], word: str) -> None:
    reports = [report(f"r{n}", targets=(Target(topic="push", breaker=state),)) for n, state in enumerate(states)]
    problem = only(*reports)
    assert problem.kind == "breaker"
    assert word in problem.text
    assert problem.fix == "tickover targets close-breaker push"
    assert problems_of(seen(report(targets=(Target(topic="push", breaker="closed"),)))) == []


def test_who_does_not_answer_is_named_with_the_last_sign() -> None:
    lives, gone = Sign("1", "tickover-1", NOW_MS - 500), Sign("2", "tickover-2", NOW_MS - 45_000)
    first, second = problems_of(seen(report(), silent=(lives, gone)))
    assert "tickover-1 lives but has not answered in time." in first.text
    assert "tickover-2 has given no sign of life since 07:59:15 UTC (45 s)" in second.text
    assert (second.kind, second.since_ms) == ("silent", NOW_MS - 45_000)


def test_a_rebuild_says_how_far_it_is() -> None:
    part = Rebuild(topic="orders-retry", partition=3, done=1_200, held=8_000, read_share=0.4)
    waits = (Wait(kind="rebuild", topic="orders-retry", partition=3, since_ms=NOW_MS - 9_000),)
    problem = only(report("a", rebuilding=(part,), waits=waits))
    assert (problem.subject, problem.since_ms) == ("orders-retry/3", NOW_MS - 9_000)
    assert "1,200 of 8,000, 40% of the ledger is read" in problem.text


def test_partitions_that_nobody_answers_for_are_no_news_while_they_are_recovered() -> None:
    lane, other = TopicPartition("orders-retry", 3), TopicPartition("orders-retry", 4)
    waits = (Wait(kind="recovering", topic=lane.topic, partition=3, since_ms=NOW_MS - 3_000),)
    recovers = report("a", recovering=1, waits=waits)
    told = only(recovers, missing=[lane])
    assert (told.kind, told.level) == ("recovering", Level.WARN)
    assert "a recovers 1 partition since 07:59:57 UTC (3 s)." in told.text
    missing, _ = problems_of(seen(recovers, missing=[lane, other]))
    assert (missing.kind, missing.level) == ("missing", Level.BAD)
    assert missing.text.startswith("No replica answers for orders-retry/4:")


def test_many_partitions_are_counted() -> None:
    lanes = [TopicPartition("t", number) for number in range(9)]
    assert "t/0, t/1, t/2 and 6 more partitions" in only(report(), missing=lanes).text


def test_without_redis_the_figures_are_of_one_process() -> None:
    """Partitions of others are no problem of their own then."""
    problem = only(report(), problem="connection refused", missing=[TopicPartition("t", 0)])
    assert problem.text == ("The other replicas can't be asked: connection refused. These figures are of one process.")


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"kafka_problem": "no broker answers"}, "kafka", "can't work with Kafka: no broker answers."),
        ({"overflow_problem": "it is read-only."}, "redis", "a problem with Redis: it is read-only."),
        ({"group_problem": "waiting for the consumer group"}, "group", "has no partitions"),
        ({"forecast_problem": "timed out"}, "forecast", "can't say what is due when: timed out."),
        ({"turn_age_ms": 12_000}, "stalled", "has not turned for 12 s"),
        ({"early": 1}, "early", "has emitted 1 message before"),
        ({"ledger_imbalance": -2}, "imbalance", "differ by 2 messages"),
    ],
)
def test_faults_of_a_process(fields: dict[str, Any], kind: str, words: str) -> None:
    problem = only(report("a", **fields))
    assert (problem.level, problem.kind, problem.subject, problem.replicas) == (Level.BAD, kind, "a", ("a",))
    assert words in problem.text


def test_a_clock_that_is_off_is_a_warning() -> None:
    problem = only(report("a", clock_skew_ms=-3_000))
    assert (problem.level, problem.kind) == (Level.WARN, "clock")
    assert "3 s behind the brokers'" in problem.text


def test_more_than_a_rate_lets_through() -> None:
    waits = (Wait(kind="rate", topic="mail", since_ms=NOW_MS - 5_000),)
    problem = only(report("a", waits=waits, targets=(Target(topic="mail", waiting=1, rate=5.0),)))
    assert (problem.level, problem.kind, problem.since_ms) == (Level.WARN, "rate", NOW_MS - 5_000)
    assert "A queue of 1 message waits its turn" in problem.text


def test_what_is_paused_is_told_with_the_command_that_resumes_it() -> None:
    pauses = {
        Pausable(PauseKind.TARGET, "mail"): Pause("gateway moves", "ops", NOW_MS - 16 * MINUTE_MS),
        Pausable(PauseKind.SCHEDULE, "end of month"): Pause("audit.", "me", NOW_MS - 93_600_000, NOW_MS + MINUTE_MS),
    }
    month, mail = problems_of(seen(report(), pauses=pauses))
    assert (mail.level, mail.kind, mail.subject, mail.since_ms) == (
        Level.WARN, "paused", "mail", NOW_MS - 16 * MINUTE_MS,
    )  # fmt: skip
    assert mail.text == (
        "The target mail is paused since 07:44:00 UTC (16 min) by ops: gateway moves. "
        "What is due for it waits; other targets go on. So it is until somebody resumes it."
    )
    assert mail.fix == "tickover pauses remove target mail"
    assert month.text.endswith("by me: audit. It writes nothing. So it is until 2027-01-15T08:01:00.000Z.")
    assert month.fix == "tickover pauses remove schedule 'end of month'"


def test_of_very_many_pauses_the_oldest_are_named() -> None:
    count = PAUSES_NAMED_MAX + 2
    pauses = {Pausable(PauseKind.TARGET, f"t{n}"): Pause("r", "me", NOW_MS - n) for n in range(count)}
    found = problems_of(seen(report(), pauses=pauses))
    assert [one.subject for one in found] == [f"t{n}" for n in range(count - 1, 1, -1)] + [""]
    assert (found[-1].text, found[-1].fix) == ("2 more things are paused.", "tickover pauses list")


def test_a_name_that_looks_like_an_option_is_none() -> None:
    assert only(report(), pauses={Pausable(PauseKind.TARGET, "-x"): Pause("r", "me", 1)}).fix.endswith("-- target -x")


def test_what_is_long_overdue_can_be_listed() -> None:
    problem = only(report("a"), report("b", oldest_overdue_ms=3 * 3_600_000))
    assert (problem.level, problem.replicas) == (Level.WARN, ("b",))
    assert "waits for 3 h, on b" in problem.text
    assert problem.fix == "tickover messages list --due-to 2027-01-15T07:59:00.000Z"


def test_a_warning_of_several_replicas_is_told_once_and_last() -> None:
    text = "reminders: keeps its records for 7 days"
    found = problems_of(seen(report("a", warnings=(text,)), report("b", warnings=(text, "more"), early=1)))
    assert [(one.kind, one.replicas) for one in found] == [
        ("early", ("b",)), ("warning", ("a", "b")), ("warning", ("b",)),
    ]  # fmt: skip
    assert found[1].text == f"{text}."


def test_no_kind_of_a_newer_version_is_told() -> None:
    assert problems_of(seen(report(waits=(Wait(kind="unheard-of", topic="t"),)))) == []


def test_every_text_is_a_sentence() -> None:
    for problem in problems_of(seen(busy_report(), silent=(Sign("1", "b", NOW_MS),), missing=[TopicPartition("t", 1)])):
        assert problem.text.endswith(".")
        assert "  " not in problem.text
