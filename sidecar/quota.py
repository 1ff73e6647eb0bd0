"""What is held of each policy in one lane, by policies that have a quota.

    read ----- add ------> used ---- left, with the block that settles it ----->
    overflow - met, page ---^        (moved: it goes on, and counts as before)

A lane begins with what its overflow has, which is read once (`overflow_scan.py`). Until that is known nothing is
refused, and what comes from there into memory is counted as it comes. Where something can't be known (what is just
leaving when a policy gets its quota) too little is counted. What a rebuild couldn't put back counts on until the lane
begins anew.
No clock, no client: the engine's thread owns it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from policies.model import Quota as QuotaPolicy
from sidecar.record import Held

Left = list[tuple[str, int]]  # (policy, bytes) of records that are settled

_ASK: Final = object()


class Used:
    """What one policy holds, and what it may."""

    __slots__ = ("bytes", "limit", "records")

    def __init__(self, limit: QuotaPolicy) -> None:
        self.limit = limit
        self.records = 0
        self.bytes = 0

    def is_full_for(self, size: int) -> bool:
        """Whether a record of so many bytes is too much."""
        limit = self.limit
        return (limit.records is not None and self.records >= limit.records) or (
            limit.bytes is not None and self.bytes + size > limit.bytes
        )

    @property
    def share(self) -> float:
        """How much of the quota is used, 1: all of it."""
        limit = self.limit
        by_records = self.records / limit.records if limit.records else 0.0
        return max(by_records, self.bytes / limit.bytes if limit.bytes else 0.0)


class Quota:
    """See the module. `limits` are by the policy's name."""

    def __init__(self, limits: Mapping[str, QuotaPolicy]) -> None:
        self._limits = limits
        self.used = {name: Used(limit) for name, limit in limits.items()}
        self._by_label: dict[str, Used | None] = {}
        self._met: set[int] | None = set()  # counted while the overflow isn't known; None: it is

    def follow(self, limits: Mapping[str, QuotaPolicy]) -> bool:
        """Go by other limits of the same policies; False: they are of others, of which nothing is counted."""
        if limits is not self._limits:
            if limits.keys() != self._limits.keys():
                return False
            self._limits = limits
            for name, limit in limits.items():
                self.used[name].limit = limit
        return True

    def takes(self, held: Held) -> bool:
        """Count a record that came, unless it is too much."""
        used = self.of(held.policy)
        if used is None:
            return True
        if self._met is None and used.is_full_for(held.size):
            return False
        self.add(held)
        return True

    def add(self, held: Held) -> None:
        """Count a record that is held, whatever there is; while the overflow isn't known, unless somebody has."""
        used = self.of(held.policy)
        if used is None:
            return
        if self._met is not None:
            if held.offset in self._met:
                return
            self._met.add(held.offset)
        used.records += 1
        used.bytes += held.size

    def met(self, records: Iterable[Held]) -> None:
        """These are in memory, or in the overflow: count those that nobody has counted yet."""
        if self._met is not None:
            for held in records:
                self.add(held)

    def struck(self, held: Held, carried: Held | None) -> None:
        """A held record was cancelled, replaced or moved: it counts until that is settled, or, moved, as `carried`."""
        self.met((held,))
        if self._met is not None and carried is not None:
            self._met.add(carried.offset)

    def all_met(self) -> None:
        """There is nothing more."""
        self._met = None

    def left(self, records: Left) -> None:
        """These are settled."""
        for policy, size in records:
            used = self.of(policy)
            if used is not None:
                used.records -= 1
                used.bytes -= size

    def of(self, label: str) -> Used | None:
        """What the policy holds, by its `name@version`; None: it has no quota."""
        used = self._by_label.get(label, _ASK)
        if used is _ASK:
            used = self._by_label[label] = self.used.get(label.rpartition("@")[0])
        return used  # type: ignore[return-value]
