"""Answers of calls whose routes make them as plain data, as models: for the description alone, which names them by the
operation. An answer may have more fields than its model.

Times are epoch milliseconds, and `*_utc` the same in RFC 3339; both null: there is none.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Place(_Answer):
    """Where a record lies in its topic."""

    topic: str
    partition: int
    offset: int


class MissingPartition(_Answer):
    """A partition that could not be asked."""

    topic: str
    partition: int


class PolicyShown(_Answer):
    """A policy, as it was written; see `Policy`."""

    name: str
    match: dict[str, Any]


class ListedPolicy(PolicyShown):
    """A policy of the list."""

    version: int
    managed_by: str


class PolicyPage(_Answer):
    """Policies by name."""

    items: list[ListedPolicy]
    next: str | None


class PolicyVersion(_Answer):
    """A version of a policy; without a policy it is a deletion."""

    version: int
    time: int
    time_utc: str | None
    author: str
    managed_by: str
    policy: PolicyShown | None


class PolicyVersionPage(_Answer):
    """Versions, oldest first."""

    items: list[PolicyVersion]
    next: str | None


class JsonSchema(_Answer):
    """A JSON Schema (2020-12)."""


class ExplainedDecision(_Answer):
    """Decision for a record: `hold`, `act`, `dead` or `quarantine`; each kind has fields of its own."""

    kind: str


class ExplainedAttempt(_Answer):
    """A delivery: when it is due at the earliest and the latest; `delay_*` are milliseconds after the one before."""

    attempt: int | None
    delay_min: int
    delay_max: int
    due_min: int
    due_min_utc: str | None
    due_max: int
    due_max_utc: str | None


class ExplanationShown(_Answer):
    """Decision for a record, and the whole schedule of its attempts."""

    decision: ExplainedDecision
    policy: str | None
    candidates: list[str]
    schedule: list[ExplainedAttempt]
    end: Any
    truncated: bool


class TimelineEvent(_Answer):
    """A line of a timeline."""

    event: str
    time: int | None
    time_utc: str | None


class MessageShown(_Answer):
    """A message, held or settled, and its way."""

    id: str | None
    source: str
    position: Place
    state: str
    tier: str | None
    due: int
    due_utc: str | None
    target: str | None = None
    policy: str | None = None
    attempt: int | None = None
    timeline: list[TimelineEvent]
    partial: bool
    missing: list[MissingPartition]


class DueMinute(_Answer):
    """How many are due within a minute."""

    minute: int
    minute_utc: str | None
    held: int


class Forecast(_Answer):
    """How many are due in each minute, before and later."""

    items: list[DueMinute]
    before: int
    later: int
    partial: bool
    missing: list[MissingPartition]


class DeadLetterShown(_Answer):
    """A dead letter."""

    position: str
    topic: str
    partition: int
    offset: int
    time: int | None
    time_utc: str | None
    reason: str | None
    error_class: str | None
    fingerprint: str | None
    policy: str | None
    attempt: int | None
    source: str | None
    id: str | None
    target: str | None


class DeadLetterPage(_Answer):
    """Letters in order of topic, partition and offset."""

    items: list[DeadLetterShown]
    next: str | None
    scanned: int
    remaining: int


class DeadLetterGroup(_Answer):
    """Letters that failed alike."""

    topic: str
    reason: str | None
    error_class: str | None
    fingerprint: str | None
    count: int
    redriven: int
    open: int


class DeadLetterGroupPage(_Answer):
    """Groups of the piece that one page reads."""

    items: list[DeadLetterGroup]
    next: str | None
    scanned: int
    remaining: int


class JobShown(_Answer):
    """A redrive or a change, and how far it has come."""

    id: str
    state: str
    reason: str | None
    author: str
    created: int
    created_utc: str | None
    updated: int
    updated_utc: str | None
    limits: dict[str, Any]
    planned: dict[str, Any]


class RedriveShown(JobShown):
    """A redrive."""

    topic: str
    target: str | None
    sent: int
    failed_again: int


class RedrivePage(_Answer):
    """Redrives, the newest first."""

    items: list[RedriveShown]
    next: str | None


class ChangeShown(JobShown):
    """A change; `token` is what running it asks for."""

    action: str
    token: str | None
    outcomes: dict[str, int]
    remaining: int


class ChangePage(_Answer):
    """Changes, the newest first."""

    items: list[ChangeShown]
    next: str | None


class ChangeReceipt(_Answer):
    """Outcome of one message of a change."""

    id: str
    source: str
    action: str
    outcome: str


class ChangeReceiptPage(_Answer):
    """Receipts in the order of the changes."""

    items: list[ChangeReceipt]
    next: str | None


class ScheduleShown(_Answer):
    """A schedule; its payload only where it was asked for."""

    name: str
    cron: str
    time_zone: str
    target: str


class ListedSchedule(_Answer):
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


class SchedulePage(_Answer):
    """Schedules by name."""

    items: list[ListedSchedule]
    next: str | None


class OccurrenceShown(_Answer):
    """A coming occurrence, and the id of its message."""

    at: int
    at_utc: str | None
    local: str
    id: str


class Occurrences(_Answer):
    """Coming occurrences."""

    items: list[OccurrenceShown]


class RunShown(_Answer):
    """An occurrence that was written, and when."""

    at: int
    at_utc: str | None
    local: str
    written: int
    written_utc: str | None
    id: str


class RunsMissed(_Answer):
    """Occurrences that nobody was there to write: how many of them were made up for."""

    after: int
    through: int
    count: int
    made_up: int
    noticed: int


class LastRuns(_Answer):
    """The last occurrences, the newest first, and what was missed."""

    items: list[RunShown]
    missed: list[RunsMissed]


class AuditRecord(_Answer):
    """Who did what, and how it ended; `actor` is null where nobody was let in."""

    time: int
    actor: str | None
    action: str | None
    outcome: str
    status: int | None
    position: Place


class AuditPage(_Answer):
    """Records, the newest first; `remaining` are still to be read."""

    items: list[AuditRecord]
    next: str | None
    scanned: int
    remaining: int


class SentAgain(_Answer):
    """A quarantined record that went to its source again."""

    position: str
    source: str
    due: int
    due_utc: str | None
    target: str
    policy: str
    plan: str


class GroupStanding(_Answer):
    """Where people stand with a group of failures, and who said so."""

    topic: str
    fingerprint: str
    state: str
    note: str | None
    said_by: str
    said: int
    said_utc: str | None


class Liveness(_Answer):
    """It lives, or starts."""

    status: str


class Readiness(_Answer):
    """It is ready; what may be wrong all the same."""

    status: str
    warnings: list[str]


class StatsShown(_Answer):
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


class CallerShown(_Answer):
    """Who calls, and the calls that the role allows."""

    name: str
    role: str
    is_anonymous: bool
    may: list[str]


class SettingShown(_Answer):
    """A setting in force."""

    setting: str
    value: Any
    default: Any
    meaning: str


class SettingsShown(_Answer):
    """Settings in force."""

    items: list[SettingShown]


class FindingShown(_Answer):
    """Something that is wrong around the process, and how to mend it."""

    severity: str
    part: str
    what: str
    fix: str | None


class Findings(_Answer):
    """What is wrong around the process."""

    at: int
    at_utc: str | None
    errors: int
    warnings: int
    items: list[FindingShown]


# By operation; for all answers of 2xx that have a body.
ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    "explain_record": ExplanationShown,
    "list_policies": PolicyPage,
    "get_policy": PolicyShown,
    "put_policy": PolicyShown,
    "rollback_policy": PolicyShown,
    "list_policy_versions": PolicyVersionPage,
    "get_policy_schema": JsonSchema,
    "get_message": MessageShown,
    "get_forecast": Forecast,
    "list_dead_letters": DeadLetterPage,
    "list_dead_letter_groups": DeadLetterGroupPage,
    "get_dead_letter": DeadLetterShown,
    "plan_redrive": RedriveShown,
    "list_redrives": RedrivePage,
    "get_redrive": RedriveShown,
    "canary_redrive": RedriveShown,
    "run_redrive": RedriveShown,
    "abort_redrive": RedriveShown,
    "plan_change": ChangeShown,
    "list_changes": ChangePage,
    "get_change": ChangeShown,
    "run_change": ChangeShown,
    "abort_change": ChangeShown,
    "list_change_receipts": ChangeReceiptPage,
    "list_schedules": SchedulePage,
    "get_schedule": ScheduleShown,
    "put_schedule": ScheduleShown,
    "rewind_schedule": ScheduleShown,
    "list_occurrences": Occurrences,
    "list_schedule_runs": LastRuns,
    "list_audit": AuditPage,
    "list_quarantine": DeadLetterPage,
    "get_quarantined": DeadLetterShown,
    "send_quarantined": SentAgain,
    "put_dead_letter_group": GroupStanding,
    "approve_change": ChangeShown,
    "approve_redrive": RedriveShown,
    "get_liveness": Liveness,
    "get_readiness": Readiness,
    "get_stats": StatsShown,
    "get_caller": CallerShown,
    "get_settings": SettingsShown,
    "get_findings": Findings,
}
