"""A selection of dead letters, by reason, error, policy and time."""

from functools import lru_cache
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from policies.duration import TIME_MAX_MS
from policies.glob import Matcher, compile_globs
from sidecar.operations.dead_letters.dead_letter import DeadLetter

WORD_LENGTH_MAX: Final = 256

Word = Annotated[str, Field(min_length=1, max_length=WORD_LENGTH_MAX)]
Time = Annotated[int, Field(ge=0, le=TIME_MAX_MS)]


class Selection(BaseModel):
    """Letters that fit everything given. `since` and `until` (excluded) are epoch milliseconds of the letter."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reason: Word | None = None
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None
    error_class: Word | None = Field(default=None, description="A glob")
    policy: Word | None = Field(default=None, description="Name, without version")
    since: Time | None = None
    until: Time | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every letter fits."""
        return not self.model_dump(exclude_none=True)

    def fits(self, letter: DeadLetter) -> bool:
        """Cheap questions first: a fingerprint costs a pass over the message."""
        if self.since is not None and letter.timestamp_ms < self.since:
            return False
        if self.until is not None and letter.timestamp_ms >= self.until:
            return False
        if self.reason is not None and letter.reason != self.reason:
            return False
        if self.policy is not None and letter.policy.partition("@")[0] != self.policy:
            return False
        if self.error_class is not None and not _matcher(self.error_class).matches(letter.error_class):
            return False
        return self.fingerprint is None or letter.fingerprint == self.fingerprint

    def may_share(self, other: "Selection") -> bool:
        """Whether a letter may fit both; False: none can."""
        words = ((self.reason, other.reason), (self.fingerprint, other.fingerprint), (self.policy, other.policy))
        if any(one != another for one, another in words if one is not None and another is not None):
            return False
        untils = [until for until in (self.until, other.until) if until is not None]
        return not untils or max(self.since or 0, other.since or 0) < min(untils)


@lru_cache(maxsize=64)
def _matcher(glob: str) -> Matcher:
    matcher = compile_globs((glob,))
    assert matcher is not None
    return matcher
