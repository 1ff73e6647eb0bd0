"""Use of quotas in one lane: what is held of each policy that has one.

    read ----- add ------> used ---- left, with the block that settles it ----->
    overflow --- found ------^        (moved: it goes on, and counts as before)

A lane begins with what its overflow has, which is read once (`OverflowScan` of `engine/intake/key_order.py`). Until
that is known nothing is refused, and what comes from there into memory is counted as it comes. Where something can't be
known (what is just leaving when a policy gets its quota) too little is counted. What a rebuild couldn't put back counts
on until the lane begins anew.
No clock, no client: the engine's thread owns it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from policies.model import Quota as QuotaPolicy
from sidecar.model.record import Held

Left = list[tuple[str, int]]  # (policy, bytes) of records that are settled

_ASK: Final = object()


class Used:
    """Records and bytes that one policy holds, and its limit."""

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
        self.is_known = False  # whether all that the overflow has is counted
        self.used = {name: Used(limit) for name, limit in limits.items()}
        self._limits = limits
        self._by_label: dict[str, Used | None] = {}
        self._counted: set[int] = set()  # offsets that may come by once more

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
        if used is not None:
            if self.is_known and used.is_full_for(held.size):
                return False
            self.add(held)
        return True

    def add(self, held: Held) -> None:
        """Count a record that is held, whatever there is, unless it is counted."""
        used = self.of(held.policy)
        if used is None or held.offset in self._counted:
            return
        used.records += 1
        used.bytes += held.size
        if not self.is_known:
            self._counted.add(held.offset)

    def found(self, records: Iterable[Held]) -> None:
        """Count records that are held, in memory or in the overflow, unless they are counted."""
        if not self.is_known:
            for held in records:
                self.add(held)

    def struck(self, held: Held, carried: Held | None) -> None:
        """A held record was cancelled, replaced or moved: it counts until that is settled, or, moved, as `carried`."""
        self.found((held,))
        if not self.is_known and carried is not None:
            self._counted.add(carried.offset)

    def all_found(self, may_come: Callable[[int], bool]) -> None:
        """There is nothing more but what is read again; `may_come` of an offset says whether it is."""
        self.is_known = True
        self._counted = set(filter(may_come, self._counted))

    def left(self, records: Left) -> None:
        """Stop counting records that are settled."""
        for policy, size in records:
            used = self.of(policy)
            if used is not None:
                used.records -= 1
                used.bytes -= size

    def of(self, label: str) -> Used | None:
        """Use of the policy that `name@version` names; None: it has no quota."""
        used = self._by_label.get(label, _ASK)
        if used is _ASK:
            used = self._by_label[label] = self.used.get(label.rpartition("@")[0])
        return used  # type: ignore[return-value]
