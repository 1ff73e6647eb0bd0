"""Settings of what operators do: the audit topic."""

from typing import Final

from pydantic import Field

from sidecar.config_values import Milliseconds, Section, TopicOrDefault

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
