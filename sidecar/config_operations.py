"""Settings of what operators do: the audit topic, dead letters."""

from typing import Final

from pydantic import Field

from sidecar.config_values import CommaList, Milliseconds, Section, TopicGlobs, TopicOrDefault

DAY_MS: Final = 86_400_000


class AuditSettings(Section):
    """The topic that says who did what over REST."""

    topic: TopicOrDefault = Field(default="", description="Name; empty: tickover.<group>.audit")
    retention_ms: Milliseconds = Field(
        default=365 * DAY_MS,
        ge=3_600_000,
        alias="retention",
        description="How long it is kept when it is created, at least 1h",
    )


class DeadLettersSettings(Section):
    """Reading dead letters over REST."""

    topics: TopicGlobs = Field(
        default=("*-dlq",),
        description="Topics that hold dead letters, beside those that policies name and the quarantine",
    )
    scan_records: int = Field(
        default=20_000, ge=100, le=1_000_000, description="Records that one page looks at, 100 to 1,000,000"
    )
    scan_time_ms: Milliseconds = Field(
        default=5_000, ge=100, le=60_000, alias="scan_time", description="How long one page may take, 100ms to 1m"
    )
    mask: CommaList = Field(
        default=("*password*", "*passwd*", "*secret*", "*token*", "*authorization*", "*cookie*", "*card*", "*iban*"),
        description="Names of fields whose values are masked when payloads are shown; globs, * masks all",
    )
