"""Settings of what operators do: dead letters, their redrive, changes of many held messages, schedules, pauses; what is
recorded of it; traces.
"""

from typing import Literal

from pydantic import Field

from sidecar.settings.types import WHILE_RUNNING, CommaList, Milliseconds, Section, TopicGlobs, TopicOrDefault


class DeadLettersSettings(Section):
    """Reading dead letters over REST."""

    topics: TopicGlobs = Field(
        default=("*-dlq",),
        description="Topics that hold dead letters, beside those that policies name and the quarantine",
    )
    scan_records: int = Field(
        default=20_000, ge=100, le=1_000_000, json_schema_extra=WHILE_RUNNING,
        description="Records that one page reads, 100 to 1,000,000",
    )  # fmt: skip
    scan_time_ms: Milliseconds = Field(
        default=5_000, ge=100, le=60_000, alias="scan_time", json_schema_extra=WHILE_RUNNING,
        description="How long one page may take, 100ms to 1m",
    )  # fmt: skip
    mask: CommaList = Field(
        default=("*password*", "*passwd*", "*secret*", "*token*", "*authorization*", "*cookie*", "*card*", "*iban*"),
        json_schema_extra=WHILE_RUNNING,
        description="Names of fields whose values are masked when payloads are shown; globs, * masks all",
    )


class RedriveSettings(Section):
    """Sending dead letters again; a plan may say otherwise, but for the last two."""

    rate: int = Field(default=1_000, ge=0, le=1_000_000, description="Letters a second, 0 to 1,000,000; 0: no limit")
    ramp_ms: Milliseconds = Field(
        default=30_000, ge=0, le=86_400_000, alias="ramp", description="From a tenth of the rate to all of it, 0 to 1d"
    )
    stop_share: float = Field(
        default=0.1, ge=0, le=1, description="More than this share of what was sent failed again: it stops, 0 to 1"
    )
    watch_ms: Milliseconds = Field(
        default=30_000,
        ge=0,
        le=86_400_000,
        alias="watch",
        description="So long after its last letter what fails again is waited for, 0 to 1d",
    )
    times_max: int = Field(default=3, ge=1, le=1_000, description="How often one record is redriven, 1 to 1,000")
    topic: TopicOrDefault = Field(default="", description="Topic of the plans; empty: tickover.<group>.redrives")
    redriven_topic: TopicOrDefault = Field(
        default="", description="Topic of what was sent again; empty: tickover.<group>.redriven"
    )


class ChangesSettings(Section):
    """Changing many held messages at once; a plan may say another rate."""

    rate: int = Field(default=1_000, ge=0, le=1_000_000, description="Messages a second, 0 to 1,000,000; 0: no limit")
    in_flight: int = Field(
        default=500, ge=1, le=5_000, description="Control records without an outcome at a time, 1 to 5,000"
    )
    answer_ms: Milliseconds = Field(
        default=60_000, ge=1_000, le=3_600_000, alias="answer", description="So long an outcome is waited for, 1s to 1h"
    )
    plan_ttl_ms: Milliseconds = Field(
        default=900_000,
        ge=1_000,
        le=86_400_000,
        alias="plan_ttl",
        description="So long after it was counted a plan may be run, 1s to 1d",
    )
    approval: Literal["none", "other"] = Field(
        default="none",
        description="other: a plan of a change or a redrive runs only when somebody other than who made it has "
        "approved it; needs tokens. none: at once",
    )
    topic: TopicOrDefault = Field(
        default="", description="Topic of the plans and receipts; empty: tickover.<group>.changes"
    )

    def refuse_without_names(self, authenticates: bool) -> None:
        """Raises ValueError where plans wait for approval and callers have no names."""
        if self.approval != "none" and not authenticates:
            raise ValueError(
                "changes.approval=other needs callers with names: set api.tokens_file, or api.oidc.issuer and "
                "api.oidc.audience, else nobody can approve anything"
            )


class SchedulesSettings(Section):
    """Writing the messages of schedules."""

    look_ahead_ms: Milliseconds = Field(
        default=10_000,
        ge=2_000,
        le=600_000,
        alias="look_ahead",
        description="So long before its time an occurrence is written to its source, 2s to 10m; what is written fires",
    )
    grace_ms: Milliseconds = Field(
        default=60_000,
        ge=1_000,
        le=86_400_000,
        alias="grace",
        description="An occurrence later than this is a missed one, 1s to 1d",
    )
    missed_max: int = Field(
        default=1_000, ge=1, le=10_000, description="How many `missed: all` makes up for, the last ones, 1 to 10,000"
    )
    topic: TopicOrDefault = Field(default="", description="Topic of the schedules; empty: tickover.<group>.schedules")


class PausesSettings(Section):
    """Pauses of policies, sources, targets and schedules."""

    topic: TopicOrDefault = Field(default="", description="Topic of the pauses; empty: tickover.<group>.pauses")


class AuditSettings(Section):
    """The topic that says who did what over REST."""

    topic: TopicOrDefault = Field(default="", description="Name; empty: tickover.<group>.audit")
    retention_ms: Milliseconds = Field(
        default=365 * 86_400_000,
        ge=3_600_000,
        alias="retention",
        description="How long it is kept when it is created, at least 1h",
    )


class OtelSettings(Section):
    """OpenTelemetry: a span for each emission of a message whose producer was traced (extra `otel`)."""

    enabled: bool = Field(default=False, description="Send spans; needs the extra `otel`, which the image has")
    endpoint: str = Field(
        default="",
        pattern=r"^(https?://[^\s/@]+(/\S*)?)?$",
        description="Where spans go, OTLP over HTTP, with path (http://collector:4318/v1/traces); empty: as the "
        "OTEL_EXPORTER_OTLP_ variables say, else http://localhost:4318/v1/traces",
    )
    queue_max: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="Spans that may wait to be sent, 1 to 1,000,000; more are dropped and counted",
    )
