"""Settings of tickover's own topics."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from sidecar.settings.types import AnyCase, Milliseconds, Replicas, Section, Topic, TopicOrDefault

DAY_MS: Final = 86_400_000


class LedgerSettings(Section):
    """The topic in which every settlement is written."""

    topic: TopicOrDefault = Field(default="", description="Name; empty: tickover.<group>.ledger")
    partitions: int = Field(
        default=8, ge=1, le=1_000, description="Partitions when it is created, 1 to 1,000; fixed afterwards"
    )
    replication_factor: Replicas = Field(
        default=-1, description="Replicas when it is created; -1: the broker's default"
    )
    retention_ms: Annotated[Milliseconds | None, Field(ge=3_600_000)] = Field(
        default=None,
        alias="retention",
        description="At least 1h; empty: as long as the policies may hold a record + 7d",
    )
    when_lost: Annotated[Literal["refuse", "continue"], AnyCase] = Field(
        default="refuse",
        description="What to do where the ledger was cut, made anew, given more partitions, or has expired with its "
        "commits. refuse: end with words; continue: go on from the commits, else where `start` says, and maybe repeat",
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_automatic(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("retention") == "":
            return {key: value for key, value in values.items() if key != "retention"}
        return values


class PoliciesSettings(Section):
    """Where the policies are."""

    file: str = Field(default="", description="YAML file of policies that this process publishes at start; empty: none")
    topic: Topic = Field(default="tickover.policies", description="The policy topic: the one truth for all replicas")


class QuarantineSettings(Section):
    """Where records go that cannot be decided."""

    topic: Topic = Field(default="tickover.quarantine", description="The quarantine topic")


class AuditSettings(Section):
    """The topic that says who did what over REST."""

    topic: TopicOrDefault = Field(default="", description="Name; empty: tickover.<group>.audit")
    retention_ms: Milliseconds = Field(
        default=365 * DAY_MS,
        ge=3_600_000,
        alias="retention",
        description="How long it is kept when it is created, at least 1h",
    )
