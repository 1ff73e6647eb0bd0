"""Policies' quotas: who is over one is quarantined at once, in place of being held.

A quota counts for each partition of the policy's sources: what one lane holds is known exactly, by one thread, and no
replica has to ask another. Records that were read before a crash are never refused: they were let in then.
"""

from collections.abc import Iterable, Mapping

from policies.decision import QUOTA_EXCEEDED
from policies.model import Quota as QuotaPolicy
from policies.table import PolicyTable
from sidecar.engine.intake.decide import Read, held_of
from sidecar.engine.intake.key_order import OverflowScan
from sidecar.engine.partition.exits import quarantined
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.quota import Quota
from sidecar.engine.storage.rebuild_worker import RebuildWorker
from sidecar.model.record import NEVER_HELD, AwaitingTarget, Diverted, Held
from sidecar.model.stats import QuotaUse


class Quotas:
    """Owned by the engine's thread. `quarantine` is the topic."""

    def __init__(self, rebuild: RebuildWorker, quarantine: str) -> None:
        self._rebuild = rebuild
        self._quarantine = quarantine
        self._table: PolicyTable | None = None
        self._followed: PolicyTable | None = None  # by all lanes
        self._is_asked = False  # whether any policy of that has a quota
        self._limits: dict[str, dict[str, QuotaPolicy]] = {}  # by source topic, by policy
        self._scans: dict[SourcePartition, OverflowScan] = {}

    # --- what is held ---------------------------------------------------------------------------------------------

    @property
    def is_scanning(self) -> bool:
        """The overflow of some lane is being read."""
        return any(scan.after is not None for scan in self._scans.values())

    def watch(self, lane: SourcePartition, table: PolicyTable) -> None:
        """Count what this lane holds by the table's policies, beginning with what it holds already."""
        limits = self._limits_of(lane.id.topic, table)
        if lane.quota is None and not limits:
            return
        if lane.quota is None or not lane.quota.follow(limits):
            self._begin(lane, limits)
        if lane in self._scans:
            self._see_whether_known(lane)

    def _begin(self, lane: SourcePartition, limits: Mapping[str, QuotaPolicy]) -> None:
        self._scans.pop(lane, None)
        lane.quota = quota = Quota(limits) if limits else None
        if quota is None:
            return
        self._scans[lane] = OverflowScan(lane)
        quota.found(lane.wheel.records())
        quota.found(lane.puts)
        for change in lane.changes:
            quota.found(held for held in change.records.values() if held.offset not in lane.promotion.skip)

    def _see_whether_known(self, lane: SourcePartition) -> None:
        """The overflow is read, and so is again what was read before a crash."""
        if self._scans[lane].after is None and lane.offsets.next >= lane.recovered_until:
            assert lane.quota is not None
            lane.quota.all_found(lane.offsets.is_open)
            del self._scans[lane]

    def _limits_of(self, topic: str, table: PolicyTable) -> Mapping[str, QuotaPolicy]:
        if table is not self._table:
            self._table = table
            self._limits.clear()
        limits = self._limits.get(topic)
        if limits is None:
            policies = [rule.policy for rule in table.rules(topic)]
            limits = {policy.name: policy.quota for policy in policies if policy.quota is not None}
            self._limits[topic] = limits
        return limits

    def step(self, lanes: Iterable[SourcePartition], table: PolicyTable, now_ms: int) -> None:
        """Look after lanes from their first moment on, and read on what their overflow has.

        `lanes`: all that are new, and all when the table is.
        """
        for lane, scan in list(self._scans.items()):
            if lane.quota is None or lane.dropped or lane.leaving:
                del self._scans[lane]
            else:
                lane.quota.found(scan.step(self._rebuild, now_ms))
        if table is not self._followed:
            self._followed, self._is_asked = table, any(one.policy.quota for one in table.policies.values())
        elif not (self._is_asked or self._scans):
            return
        for lane in dict.fromkeys((*self._scans, *lanes)):
            self.watch(lane, table)

    # --- what was read --------------------------------------------------------------------------------------------

    def admit(self, lane: SourcePartition, read: Read) -> Read:
        """Records decided a moment ago: those that may be held, and the departures of the others."""
        refused: list[Diverted | AwaitingTarget] = []

        def may_come(record: object) -> bool:
            held = held_of(record)
            if held is None or self._takes(lane, held):
                return True
            refused.append(self._refused(lane, held))
            return False

        held = [record for record in read.held if may_come(record)]
        others = [record for record in read.others if may_come(record)]
        named = [record for record in read.named if may_come(record)]
        return Read(held, others + refused, named)

    def _takes(self, lane: SourcePartition, held: Held) -> bool:
        quota = lane.quota
        assert quota is not None
        if held.offset >= lane.recovered_until:
            return quota.takes(held)
        quota.add(held)
        return True

    def _refused(self, lane: SourcePartition, held: Held) -> Diverted:
        assert lane.quota is not None
        used = lane.quota.of(held.policy)
        assert used is not None
        detail = (
            f"policy {held.policy} holds {used.records} records of {used.bytes} bytes of {lane.id}, its quota is "
            + " and ".join(
                f"{limit} {what}"
                for limit, what in ((used.limit.records, "records"), (used.limit.bytes, "bytes"))
                if limit is not None
            )
        )
        departure = quarantined(self._quarantine, lane, held, QUOTA_EXCEEDED, detail)
        return departure._replace(held_bytes=NEVER_HELD)


def uses_of(lanes: Iterable[SourcePartition]) -> dict[str, QuotaUse]:
    """Records and bytes that these lanes hold of each policy that has a quota, and the largest share of a lane."""
    uses: dict[str, QuotaUse] = {}
    for lane in lanes:
        for name, used in lane.quota.used.items() if lane.quota is not None else ():
            use = uses.get(name, QuotaUse())
            uses[name] = QuotaUse(use.records + used.records, use.bytes + used.bytes, max(use.share, used.share))
    return uses
