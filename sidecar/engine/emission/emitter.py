"""Emission: from due to handed over. What can't be emitted as it is leaves another named way from here.

due -> ready -> produce -> open interval (commit/interval.py)
 ^       |         |
 |       |         +- queue full: stays ready        +- refused by Kafka: `redelivery.py`
 |       +- expired: dead letter      +- no such topic, or a reserved   +- too large: quarantine by reference
 |       |                               one: quarantine
 +-------+- the clock was set back, and it isn't due: into the wheel again, wherever it has waited
"""

from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from policies.decision import TARGET_NOT_ALLOWED, UNKNOWN_TARGET
from policies.headers import DUE, ORIGIN, POLICY
from sidecar.engine.commit.settlement import Settlement
from sidecar.engine.counters import EngineCounters
from sidecar.engine.emission.due_queue import Batch
from sidecar.engine.emission.redelivery import RUN_MAX, SMALL_BYTES_MAX, Redelivery
from sidecar.engine.emission.targets import Targets
from sidecar.engine.partition.exits import given_up, no_target, quarantined
from sidecar.engine.partition.partition import SourcePartition
from sidecar.engine.partition.record_queue import PendingRecord, earliest
from sidecar.model.condition import Pausable
from sidecar.model.header_codec import emission_headers, quarantine_headers
from sidecar.model.record import AwaitingTarget, Diverted, Headers, Held, due_of
from sidecar.model.reserved_topics import RESERVED

_trailer: Final = itemgetter(Held._fields.index("trailer"))
NOW: Final = 0  # the producer's word for "timestamp: when it is sent"


class Arrived(NamedTuple):
    """A record that had waited to be held until its target was known: now it may be, or it has left."""

    lane: SourcePartition
    held: Held
    may_be_held: bool  # False: there is no such target, and the record is in quarantine


class Emitted(NamedTuple):
    """Result of a call of `Emitter.emit`."""

    number: int  # records seen to
    arrived: list[Arrived]


class Emitter:
    """Hands what is due to the settlement's open interval. Owns nothing but the turns: records wait in `Redelivery`."""

    def __init__(
        self, targets: Targets, tally: EngineCounters, quarantine: str, redelivery: Redelivery, settlement: Settlement
    ) -> None:
        self.load = redelivery.load
        self.pauses = redelivery.ready.pauses
        self.gate = redelivery.ready.gate
        self.in_order = redelivery.in_order
        self.redelivery = redelivery
        self.problem = ""
        self.settlement = settlement
        self._targets = targets
        self._tally = tally
        self._quarantine = quarantine
        self._ready = redelivery.ready
        self._arrived: list[Arrived] = []
        self._is_full = False  # the producer took no more
        self._fired_ms = 0  # the latest time by which anything has fired
        self._kinds = deque((self._emit_again, self._emit_in_order, self._emit_ready))  # each goes first in its turn

    # --- due ------------------------------------------------------------------------------------------------------

    def to_wheel(self, lane: SourcePartition, records: Sequence[Held]) -> None:
        """Hold records in a lane's wheel."""
        if not records:
            return
        lane.wheel.insert_all(records)
        lane.agenda.expect(lane, min(map(due_of, records)))
        lane.agenda.stir(lane)
        self.load.add(records)
        if any(map(_trailer, records)):
            lane.ids.know(records)

    def withdraw(self, lane: SourcePartition, held: Held) -> None:
        """Take a record out of its lane's wheel, or of what waits at the gate: it will not fire."""
        if not (self.pauses.withdraw(lane, held) or self.gate.withdraw(lane, held)):
            lane.wheel.cancel(held.offset)
            lane.agenda.stir(lane)
        self.load.remove((held,))

    def fire(self, lane: SourcePartition, now_ms: int) -> None:
        """Take what is due out of a lane's wheel."""
        self._fired_ms = max(self._fired_ms, now_ms)
        due = lane.wheel.advance(now_ms)
        if (soonest_ms := lane.wheel.soonest_ms()) >= 0:
            lane.agenda.expect(lane, soonest_ms)
        if due:
            lane.agenda.stir(lane)
        if fired := self.in_order.fired(lane, due):
            self._pass_limits(lane, self.pauses.sift(lane, fired) if self.pauses.keeps_any else fired)

    def pause(self, paused: frozenset[Pausable], now_ms: int) -> None:
        """Keep up with what is paused. What waits for something else, or is on its way, waits for the pause then."""
        if not self.pauses.follow(paused, now_ms) or not self.pauses.holds_any:
            return
        for lane, records in self.gate.take_out(self.pauses.holds):
            self.pauses.put(lane, records)
        self.redelivery.again.take_all(self._targets.take_held_up(self.pauses.holds))  # each meets it in its turn

    def _pass_limits(self, lane: SourcePartition, due: list[Held]) -> None:
        self._let_go(lane, self.gate.sift(lane, due) if self.gate.active else due)

    def _let_go(self, lane: SourcePartition, due: list[Held]) -> None:
        """Let due records leave: nothing can be done with them any more."""
        if lane.ids:
            lane.ids.fired(due)
        if due:
            self._ready.batches.append(Batch(lane, due))

    def leave(self, lane: SourcePartition, parcel: Diverted | AwaitingTarget) -> None:
        """A record that leaves at once, or that is held when the cluster has said that its target exists."""
        self.redelivery.again.append(lane, parcel)

    # --- handed over ----------------------------------------------------------------------------------------------

    def emit(self, now_ms: int, budget: int) -> Emitted:
        """See to at most `budget` records; hand over what the settlement has room for. A full queue ends it early."""
        number = self._emit(now_ms, budget)
        arrived, self._arrived = self._arrived, []
        return Emitted(number, arrived)

    def _emit(self, now_ms: int, budget: int) -> int:
        returned, settlement = self.redelivery, self.settlement
        returned.release(now_ms)
        sent = 0
        if not self._is_full:
            if self.pauses.keeps_any:
                self._resume(now_ms)
            for lane, records in self.gate.let_through(now_ms, returned.room_of):
                self._let_go(lane, records)
        self._is_full = False
        try:
            if returned.isolated and settlement.open.isolation_output is not None:
                self.emit_isolated(now_ms)
            if returned.small and settlement.open.small_output is not None:
                self.emit_small(now_ms)
            if settlement.room > 0:
                self._kinds.rotate()
            for emit in self._kinds:
                sent += emit(now_ms, budget - sent)
        except BufferError:
            self._is_full = True  # what is left stays ready, and polling makes room
        return sent

    def _resume(self, now_ms: int) -> None:
        for lane, records in self.pauses.take_expired(now_ms):
            self._let_go(lane, records)
        for lane, records in self.pauses.let_through(now_ms, self.redelivery.room_of):
            self._pass_limits(lane, records)

    def _emit_again(self, now_ms: int, budget: int) -> int:
        returned, sent = self.redelivery, 0
        while sent < budget and returned.next_fits(self.settlement.room):
            self._emit_one(*returned.again.first, now_ms)
            returned.again.popleft()
            sent += 1
        return sent

    def emit_isolated(self, now_ms: int) -> None:
        """Hand records to the producer that sends them one by one: those for one topic at a time."""
        topic, queue, count = self.redelivery.take_isolated()
        try:
            for _ in range(count):
                self._emit_one(*queue.first, now_ms, isolated=True)
                queue.popleft()
        except BufferError:
            pass  # the rest of them later
        finally:
            self.redelivery.isolated.put_back(topic, queue)

    def emit_small(self, now_ms: int) -> None:
        """Hand records to the producer of small batches: those of all topics, in order."""
        queue = self.redelivery.small
        left, bytes_left = self.redelivery.small_fits, SMALL_BYTES_MAX
        try:
            while left > 0 and bytes_left > 0:
                before = queue.bytes
                lane, records = queue.take_run(min(left, RUN_MAX))
                if records and not lane.dropped:
                    self._emit_run(lane, records, now_ms)
                elif not records:
                    self._emit_one(*queue.first, now_ms)
                    queue.popleft()
                left, bytes_left = left - max(len(records), 1), bytes_left - (before - queue.bytes)
        except BufferError:
            pass  # the rest of them later

    def _emit_in_order(self, now_ms: int, budget: int) -> int:
        room, sent = min(budget, self.settlement.room), 0
        for lane, key in self.in_order.free_keys():
            if sent >= room:
                break
            sent += self._emit_key(lane, key, now_ms, room - sent)
        return sent

    def _emit_key(self, lane: SourcePartition, key: int, now_ms: int, budget: int) -> int:
        in_order, sent = self.in_order, 0
        while sent < budget and (record := in_order.next_of(lane, key, now_ms)) is not None:
            at_once = not record.is_single and self._goes_at_once(record.held, now_ms)
            if record.follows and not at_once:
                break  # what comes before it is to be settled first
            in_order.take(lane, key)
            try:
                self._hand_over(lane, record.held, now_ms, record.is_isolated)
            except BufferError:
                in_order.put_back(lane, key, record)
                raise
            self.load.remove((record.held,))
            sent += 1
            if not at_once:
                break
        return sent

    def _emit_ready(self, now_ms: int, budget: int) -> int:
        batches, sent = self._ready.batches, 0
        while batches and sent < budget and (room := self.settlement.room) > 0:
            batch, most = batches[0], min(budget - sent, room)
            early = self._take_early(batch, now_ms, most) if now_ms < self._fired_ms else 0
            sent += early + self._emit_batch(batch, now_ms, most - early)
            if batch.start == len(batch.records):
                batches.popleft()
        return sent

    def _take_early(self, batch: Batch, now_ms: int, most: int) -> int:
        """The clock was set back since these fired: what isn't due of the next `most` waits in its wheel again.

        Returns how many that are.
        """
        rest = batch.records[batch.start :]
        early = [held for held in rest[:most] if held.due_ms > now_ms]
        if early:
            batch.records = [held for held in rest[:most] if held.due_ms <= now_ms] + rest[most:]
            batch.start = 0
            self.load.remove(early)
            for held in early:
                self._not_due(batch.lane, held)
        return len(early)

    def _not_due(self, lane: SourcePartition, held: Held, isolated: bool = False) -> None:
        """The clock was set back since it fired: it fires again when it is due, or waits in its place of its key."""
        if not self.in_order.came_back(lane, held, isolated):
            self.to_wheel(lane, (held,))

    def _emit_batch(self, batch: Batch, now_ms: int, budget: int) -> int:
        """The hot path: one call per record, no allocation beside the headers. Raises BufferError when full."""
        lane = batch.lane
        chunk = batch.records[batch.start : batch.start + budget]
        interval, output = self.settlement.open, self.settlement.open.output
        produce, report, refused = output.produce, interval.report, output.refused
        small, small_output = self.redelivery.in_small_batches, interval.small_output
        exceeds = self._targets.limits.exceeds
        one_by_one = self.redelivery.one_by_one - small
        is_paused = self.pauses.holds if self.pauses.holds_any else None
        partitions, here = self._targets.partitions, lane.here.decode()
        passed: list[int] = []  # places in the chunk of records that left another way
        taken, due_before, due = 0, -1, ("", "")
        policy_before, label = "", ("", "")
        try:
            for held in chunk:
                (
                    due_ms, offset, target, target_partition, key, value, headers, policy, origin, attempt, _,
                    trailer, expires_ms, _, _, _,
                ) = held  # fmt: skip
                is_small = bool(small) and target in small
                if small and small_output is not None:
                    produce = small_output.produce if is_small else output.produce
                    report = interval.report_small if is_small else interval.report
                if (
                    target_partition >= partitions.get(target, -1)
                    or 0 <= expires_ms < now_ms
                    or (one_by_one and target in one_by_one)
                    or (is_small and exceeds(target, held))
                    or (is_paused is not None and is_paused(held))
                ):
                    self._emit_one(lane, held, now_ms)
                    passed.append(taken)
                elif is_small and small_output is None:
                    self.redelivery.small.append(lane, held)
                    passed.append(taken)
                elif attempt or trailer:
                    try:
                        headers = emission_headers(held, lane.here)
                        produce(target, value, key, target_partition, report, None, NOW, headers)
                    except refused as error:
                        self.redelivery.refuse(lane, held, error.args[0], isolated=False)
                        passed.append(taken)
                else:
                    if due_ms != due_before:  # records come by due time: most share both with the one before
                        due_before, due = due_ms, (DUE, str(due_ms))
                    if policy is not policy_before:
                        policy_before, label = policy, (POLICY, policy)
                    own: list[tuple[str, Any]] = [*headers, (ORIGIN, origin or f"{here}{offset}"), due, label]
                    try:
                        produce(target, value, key, target_partition, report, None, NOW, own)
                    except refused as error:
                        self.redelivery.refuse(lane, held, error.args[0], isolated=False)
                        passed.append(taken)
                taken += 1
        finally:
            self._handed_over(batch, chunk[:taken], passed, now_ms)
        return taken

    def _emit_run(self, lane: SourcePartition, records: list[Held], now_ms: int) -> None:
        """Records that go in small batches. Where there is no room, the rest stays for the next time."""
        batch = Batch(lane, records)
        self.load.add(records)
        try:
            if now_ms < self._fired_ms:
                self._take_early(batch, now_ms, len(records))
            self._emit_batch(batch, now_ms, len(records))
        finally:
            rest = batch.records[batch.start :]
            self.load.remove(rest)
            self.redelivery.small.put_back(lane, rest)

    def _handed_over(self, batch: Batch, taken: list[Held], passed: list[int], now_ms: int) -> None:
        """Book what the loop has done: whole columns at a time, because that costs a fraction of a step per record."""
        batch.start += len(taken)
        self.load.remove(taken)
        for place in reversed(passed):
            del taken[place]
        if not taken:
            return
        dues_ms = list(map(due_of, taken))
        self.settlement.open.took(batch.lane, taken, now_ms, min(dues_ms))
        self._tally.handed_over(now_ms, dues_ms)

    def _emit_one(self, lane: SourcePartition, parcel: PendingRecord, now_ms: int, isolated: bool = False) -> None:
        """Any record, with all that can be wrong with it. Raises BufferError when the producer is full."""
        if lane.dropped:
            return
        if isinstance(parcel, Diverted):
            self._emit_departure(lane, parcel, now_ms, isolated)
            return
        if isinstance(parcel, AwaitingTarget):
            self._arrive(lane, parcel, now_ms)
            return
        if parcel.due_ms > now_ms:
            self._not_due(lane, parcel, isolated)
            return
        if 0 <= parcel.expires_ms < now_ms:
            self._emit_departure(lane, given_up(lane, parcel, "expired"), now_ms, isolated)
            return
        if self.pauses.holds_any and self.pauses.holds(parcel):
            self.pauses.put(lane, [parcel])
            self.load.add((parcel,))
            return
        count = self._targets.count_for(parcel, now_ms)
        if count is None and not self._targets.absent(parcel.target, now_ms):
            self._targets.wait(lane, parcel)
        elif count is None or parcel.target_partition >= count:
            no_place = quarantined(self._quarantine, lane, parcel, *no_target(parcel, count))
            self._emit_departure(lane, no_place, now_ms, isolated)
        elif self._produce(lane, parcel, parcel.target, emission_headers(parcel, lane.here), isolated):
            self.settlement.open.took(lane, [parcel], now_ms, parcel.due_ms)
            self._tally.handed_over(now_ms, (parcel.due_ms,))

    def _hand_over(self, lane: SourcePartition, held: Held, now_ms: int, isolated: bool) -> None:
        if isolated:
            self.redelivery.isolated.append(held.target, lane, held)
        elif not self._ready.waits_at_gate(lane, held):
            self._emit_one(lane, held, now_ms)

    def _goes_at_once(self, held: Held, now_ms: int) -> bool:
        is_paused = self.pauses.holds_any and self.pauses.holds(held)
        return not is_paused and self.redelivery.goes_at_once(held, now_ms) and not self.gate.limits(held.target)

    def _arrive(self, lane: SourcePartition, arrival: AwaitingTarget, now_ms: int) -> None:
        """A record read a moment ago: it is held once its target is known to exist."""
        held = arrival.held
        count = self._targets.count_for(held, now_ms)
        if count is None and not self._targets.absent(held.target, now_ms):
            self._targets.wait(lane, arrival)
        elif count is None or held.target_partition >= count:
            reason, detail = no_target(held, count)
            headers = quarantine_headers(arrival.headers, lane.here + b"%d" % held.offset, reason, detail)
            departure = quarantined(self._quarantine, lane, held, reason, "")._replace(headers=headers)
            self._emit_departure(lane, departure, now_ms, isolated=False)
            self._arrived.append(Arrived(lane, held, may_be_held=False))
        else:
            self._arrived.append(Arrived(lane, held, may_be_held=True))

    def _emit_departure(self, lane: SourcePartition, departure: Diverted, now_ms: int, isolated: bool) -> None:
        """Dead letters and quarantined records. A dead-letter topic that isn't there, or is reserved, makes it a
        quarantined one.
        """
        topic = departure.topic
        known = self._targets.knows(topic)
        if topic != self._quarantine and self._targets.is_reserved(topic):
            detail = f"no letters for {topic}: it {RESERVED}; the reason was {departure.reason}"
            no_place = quarantined(self._quarantine, lane, departure, TARGET_NOT_ALLOWED, detail)
            self._emit_departure(lane, no_place, now_ms, isolated)
        elif not known and topic != self._quarantine and self._targets.absent(topic, now_ms):
            detail = f"no dead-letter topic {topic}, or no permission for it; the reason was {departure.reason}"
            no_place = quarantined(self._quarantine, lane, departure, UNKNOWN_TARGET, detail)
            self._emit_departure(lane, no_place, now_ms, isolated)
        elif not known:
            if self._targets.absent(topic, now_ms):
                self.problem = f"no quarantine topic {topic}, or no right to write to it: `tickover doctor` says how"
            self._targets.wait(lane, departure)
        elif self._produce(lane, departure, topic, departure.headers, isolated):
            self.problem = ""
            self.settlement.open.took_departure(lane, departure)

    def _produce(
        self, lane: SourcePartition, parcel: Held | Diverted, topic: str, headers: Headers, isolated: bool
    ) -> bool:
        """Hand one record over; False when it has to wait, or the producer refuses it and it leaves another way."""
        place, interval = self.redelivery.place_for(lane, parcel, isolated), self.settlement.open
        if place is None:
            return False
        partition = place.partition if parcel.key is None else self._targets.asked_partition(parcel)
        output, report = interval.output, interval.report
        if isolated:
            output, report = interval.isolation_output, interval.report_isolated
        elif self.redelivery.goes_small(topic):
            if (output := interval.small_output) is None:
                self.redelivery.small.append(lane, parcel)  # for the next transaction of such
                return False
            report = interval.report_small
        try:
            output.produce(topic, parcel.value, parcel.key, partition, report, None, NOW, headers)
        except output.refused as error:
            self.redelivery.refuse(lane, parcel, error.args[0], isolated)
            return False
        interval.handed_over(place)
        return True

    # --- for the engine -------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Records that are due or leaving and not handed over."""
        return self._ready.count + self.in_order.count + self.redelivery.count

    def due_of(self, lane: SourcePartition) -> Sequence[tuple[Sequence[Held], int]]:
        """Runs of this lane's records that are due, and the index from which on they are not handed over."""
        return [*self._ready.due_of(lane), (self.in_order.due_of(lane), 0)]

    def oldest_due_ms(self) -> int:
        """Due time of the record that has waited longest for being emitted as a fact, but for a pause, -1 when none
        waits.
        """
        waiting = (queue.oldest_due_ms() for queue in (self._ready, self.in_order, self.redelivery))
        return earliest([*waiting, *(interval.oldest_due_ms for interval in self.settlement.in_flight)])

    def drop(self, lanes: set[SourcePartition]) -> None:
        """Forget what belongs to lanes that were revoked: whoever has them next reads it again."""
        for records in self._ready.drop(lanes):
            self.load.remove(records)
        for lane in lanes:
            self.load.remove(lane.wheel.records())
            self.load.remove(self.in_order.drop(lane))
        self.redelivery.drop(lanes)
        self._targets.drop(lanes)
        self.problem = ""  # what still waits for the quarantine topic says so again
