"""Answers about schedules, and about the process and what is around it, as models for the description alone."""

from typing import Any

from api.openapi.answer import Answer


class ScheduleShown(Answer):
    """A schedule; its payload only where it was asked for."""

    name: str
    cron: str
    time_zone: str
    target: str


class ListedSchedule(Answer):
    """A schedule of the list. One that can't be read here may have a name alone."""

    name: str
    source: str | None
    version: int
    state: str
    problem: str | None
    written_up_to: int | None
    written_up_to_utc: str | None
    next: int | None
    next_utc: str | None


class SchedulePage(Answer):
    """Schedules by name."""

    items: list[ListedSchedule]
    next: str | None


class OccurrenceShown(Answer):
    """A coming occurrence, and the id of its message."""

    at: int
    at_utc: str | None
    local: str
    id: str


class Occurrences(Answer):
    """Coming occurrences."""

    items: list[OccurrenceShown]


class RunShown(Answer):
    """An occurrence that was written, and when."""

    at: int
    at_utc: str | None
    local: str
    written: int
    written_utc: str | None
    id: str


class RunsMissed(Answer):
    """Occurrences that nobody was there to write: how many of them were made up for."""

    after: int
    through: int
    count: int
    made_up: int
    noticed: int


class LastRuns(Answer):
    """The last occurrences, the newest first, and what was missed."""

    items: list[RunShown]
    missed: list[RunsMissed]


class AuditRecord(Answer):
    """A record of the audit: who did what, and how it ended; `actor` is null where nobody was let in."""

    time: int
    position: str
    place: str


class AuditPage(Answer):
    """Records, the newest first; `remaining` are still to be read."""

    items: list[AuditRecord]
    next: str | None
    scanned: int
    remaining: int


class SentAgain(Answer):
    """A quarantined record that went to its source again; a control record has neither due time nor target."""

    position: str
    place: str
    source: str
    due: int | None
    due_utc: str | None
    target: str | None
    policy: str
    plan: str


class GroupStanding(Answer):
    """Where people stand with a group of failures, and who said so."""

    topic: str
    fingerprint: str
    state: str
    note: str | None
    said_by: str
    said: int
    said_utc: str | None


class PauseShown(Answer):
    """A pause, and how many due messages wait for it here."""

    kind: str
    name: str
    reason: str
    by: str
    since: int
    until: int | None
    waiting: int | None


class BreakerSwitched(Answer):
    """The breaker of a target, opened or closed by somebody."""

    name: str
    by: str
    at: int


class Liveness(Answer):
    """Alive, or starting."""

    status: str


class Readiness(Answer):
    """Ready; and faults all the same."""

    status: str
    warnings: list[str]


class StatsShown(Answer):
    """Figures of one process."""

    replica: str
    topics: dict[str, dict[str, Any]]
    lateness_ms: dict[str, float]
    targets: dict[str, dict[str, Any]]
    suspended: list[str]
    early: int
    oldest_overdue_ms: int
    next_due: int | None
    next_due_utc: str | None
    problems: list[str]


class CallerShown(Answer):
    """The caller, and the calls that the role allows."""

    name: str
    role: str
    is_anonymous: bool
    may: list[str]


class SettingShown(Answer):
    """A setting in force."""

    setting: str
    value: Any
    default: Any
    meaning: str


class SettingsShown(Answer):
    """Settings in force."""

    items: list[SettingShown]


class FindingShown(Answer):
    """Something that is wrong around the process, and how to mend it."""

    severity: str
    part: str
    what: str
    fix: str | None


class Findings(Answer):
    """Faults around the process."""

    at: int
    at_utc: str | None
    errors: int
    warnings: int
    items: list[FindingShown]


# By operation; for all answers of 2xx that have a body.
