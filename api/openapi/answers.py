"""Answers of calls whose routes make them as plain data, as models: for the description alone, which names them by the
operation. An answer may have more fields than its model.

Times are epoch milliseconds, and `*_utc` the same in RFC 3339; both null: there is none.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from api.openapi.answer import Answer, Place
from api.openapi.process_answers import (
    AuditPage,
    BreakerSwitched,
    CallerShown,
    Findings,
    GroupStanding,
    LastRuns,
    Liveness,
    Occurrences,
    PauseShown,
    Readiness,
    SchedulePage,
    ScheduleShown,
    SentAgain,
    SettingsShown,
    StatsShown,
)


class MissingPartition(Answer):
    """A partition that could not be asked."""

    topic: str
    partition: int


class PolicyShown(Answer):
    """A policy, as it was written; see `Policy`."""

    name: str
    match: dict[str, Any]


class ListedPolicy(PolicyShown):
    """A policy of the list."""

    version: int
    managed_by: str


class PolicyPage(Answer):
    """Policies by name."""

    items: list[ListedPolicy]
    next: str | None


class PolicyVersion(Answer):
    """A version of a policy; without a policy it is a deletion."""

    version: int
    time: int
    time_utc: str | None
    author: str
    managed_by: str
    policy: PolicyShown | None


class PolicyVersionPage(Answer):
    """Versions, oldest first."""

    items: list[PolicyVersion]
    next: str | None


class JsonSchema(Answer):
    """A JSON Schema (2020-12)."""


class ExplainedDecision(Answer):
    """Decision for a record: `hold`, `act`, `dead` or `quarantine`; each kind has fields of its own."""

    kind: str


class ExplainedAttempt(Answer):
    """A delivery: when it is due at the earliest and the latest; `delay_*` are milliseconds after the one before."""

    attempt: int | None
    delay_min: int
    delay_max: int
    due_min: int
    due_min_utc: str | None
    due_max: int
    due_max_utc: str | None


class ExplanationShown(Answer):
    """Decision for a record, and the whole schedule of its attempts."""

    decision: ExplainedDecision
    policy: str | None
    candidates: list[str]
    schedule: list[ExplainedAttempt]
    end: Any
    truncated: bool


class TimelineEvent(Answer):
    """A line of a timeline."""

    event: str
    time: int | None
    time_utc: str | None


class MessageShown(Answer):
    """A message, held or settled, and its way."""

    id: str | None
    source: str
    position: Place
    place: str
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


class DueMinute(Answer):
    """How many are due within a minute."""

    minute: int
    minute_utc: str | None
    held: int


class Forecast(Answer):
    """How many are due in each minute, before and later."""

    items: list[DueMinute]
    before: int
    later: int
    partial: bool
    missing: list[MissingPartition]


class DeadLetterShown(Answer):
    """A dead letter."""

    position: str
    place: str
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
    source_place: str | None
    id: str | None
    target: str | None


class DeadLetterPage(Answer):
    """Letters in order of topic, partition and offset."""

    items: list[DeadLetterShown]
    next: str | None
    scanned: int
    remaining: int


class DeadLetterGroup(Answer):
    """Letters that failed alike."""

    topic: str
    reason: str | None
    error_class: str | None
    fingerprint: str | None
    count: int
    redriven: int
    open: int


class DeadLetterGroupPage(Answer):
    """Groups of the piece that one page reads."""

    items: list[DeadLetterGroup]
    next: str | None
    scanned: int
    remaining: int


class JobShown(Answer):
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


class RedrivePage(Answer):
    """Redrives, the newest first."""

    items: list[RedriveShown]
    next: str | None


class ChangeShown(JobShown):
    """A change; `token` is what running it asks for."""

    action: str
    token: str | None
    outcomes: dict[str, int]
    remaining: int


class ChangePage(Answer):
    """Changes, the newest first."""

    items: list[ChangeShown]
    next: str | None


class ChangeReceipt(Answer):
    """Outcome of one message of a change."""

    id: str
    source: str
    action: str
    outcome: str
    position: Place
    place: str
    control: Place | None
    control_place: str | None


class ChangeReceiptPage(Answer):
    """Receipts in the order of the changes."""

    items: list[ChangeReceipt]
    next: str | None


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
    "put_pause": PauseShown,
    "close_breaker": BreakerSwitched,
    "open_breaker": BreakerSwitched,
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
