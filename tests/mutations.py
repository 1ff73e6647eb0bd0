"""The mistakes that are put into the engine on purpose, one at a time: `tests/mutants.py` tries them."""

from dataclasses import dataclass
from typing import Final

ENGINE: Final = "simulation/test_simulation.py"


@dataclass(frozen=True, slots=True)
class Mutant:
    """In a file of `sidecar/`, or one that begins with `api/` and the like, `old` (there once) becomes `new`. `tests`:
    pytest's -k, when only some could find it; `suite`: the file under tests/ that has them.
    """

    file: str
    old: str
    new: str
    tests: str = ""
    suite: str = ENGINE

    @property
    def path(self) -> str:
        """From the project's root."""
        return self.file if self.file.startswith(("api/", "policies/", "pipeline/")) else f"sidecar/{self.file}"


TRANSACTIONS: Final = "transactions"
ORDER: Final = TRANSACTIONS  # without them a record that was refused may come late

MUTANTS: Final[dict[str, Mutant]] = {
    "the wheel rounds down": Mutant(
        "engine/partition/wheel.py", "tick = -(-held[0] // tick_ms)", "tick = held[0] // tick_ms"
    ),
    "a partition that owes a commit is not looked at": Mutant(
        "engine/partition/partition.py",
        "        self.uncommitted = True\n        self.agenda.stir(self)\n",
        "        self.uncommitted = True\n",
    ),
    "a wheel is looked at when the last of its records is due": Mutant(
        "engine/emission/emitter.py",
        "lane.agenda.expect(lane, min(map(due_of, records)))",
        "lane.agenda.expect(lane, max(map(due_of, records)))",
    ),
    "what the client only infers is a fact": Mutant(
        "engine/commit/interval.py",
        "        if error is not None or message.offset() is None:\n"
        "            self.failures.append(Failure(refusal(error, message), message, isolated=False))",
        "        if error is not None:\n"
        "            self.failures.append(Failure(refusal(error, message), message, isolated=False))",
    ),
    "what has found its target is not held": Mutant(
        "engine/engine.py", "                self._hold_arrived(arrived)\n", "                pass\n"
    ),
    "the wheel fires a tick early": Mutant(
        "engine/partition/wheel.py", "reached = now_ms // self.tick_ms", "reached = -(-now_ms // self.tick_ms)"
    ),
    "W is C, whatever is unsettled": Mutant(
        "engine/partition/progress.py",
        "reached = self.windows[0].start if self.windows else self.cursor",
        "reached = self.cursor",
    ),
    "an overtaken record is promoted too": Mutant(
        "engine/partition/progress.py",
        "            self.skip[held.offset] = held.position\n            self.overtaken",
        "            self.overtaken",
    ),
    "promotion passes nothing over": Mutant(
        "engine/partition/progress.py",
        "if held.offset not in skip] if skip else list(records)",
        "] if skip else list(records)",
    ),
    "an overtaken record is done when Redis has it": Mutant(
        "engine/partition/partition.py",
        "if offset not in skip and index >= 0 and not done[index]:",
        "if index >= 0 and not done[index]:",
    ),
    "a parked record keeps its own due time": Mutant(
        "engine/intake/key_order.py", "if tail.due_ms > held.due_ms:", "if False:", ORDER
    ),
    "one that is read again passes one that is still in Redis": Mutant(
        "engine/intake/key_order.py",
        "        return tail if tail.ahead_of(lane.promotion.cursor) else None",
        "        return None",
        ORDER,
    ),
    "a record in order overtakes what Redis has": Mutant(
        "engine/partition/partition.py",
        "stay = self.order.on_the_way if self.order is not None else ()",
        "stay = ()",
        ORDER,
    ),
    "what Redis has of a key is not looked for": Mutant(
        "engine/intake/key_order.py", "            order.sought |= fresh", "            pass", ORDER
    ),
    "one that waits for its target is passed": Mutant(
        "engine/intake/key_order.py", "if key in order.unplaced or", "if", ORDER
    ),
    "one that a quota refused is passed": Mutant(
        "engine/intake/key_order.py",
        " or key in order.refused:",
        ":",
        "after_a_refused_one",
        "unit/engine/partition/test_key_order.py",
    ),
    "one that isn't read again yet is passed": Mutant(
        "engine/emission/queues.py",
        " or order.must_wait(key, held.offset, lane.offsets.next, lane.promotion.cursor):",
        ":",
        ORDER,
    ),
    "what comes back loses its place": Mutant(
        "engine/emission/queues.py", "if lane.order is None or isinstance(parcel, Diverted):", "if True:", ORDER
    ),
    "a quota forgets what is redone": Mutant(
        "engine/intake/decide.py", "        lane.quota.add(held)\n    return None", "        pass\n    return None"
    ),
    "what is moved counts twice": Mutant(
        "engine/partition/quota.py", "            self._counted.add(carried.offset)", "            pass"
    ),
    "what is promoted isn't counted": Mutant(
        "engine/partition/partition.py", "                self.quota.found(fresh)", "                pass"
    ),
    "what is resumed is forgotten": Mutant(
        "engine/emission/pauses.py",
        "if queue.count or one in self.since_ms}",
        "if one in self.since_ms}",
    ),
    "what waits for a pause stays when its partition goes": Mutant(
        "engine/emission/queues.py", "        yield self.pauses.drop(lanes)\n", ""
    ),
    "the cursor passes what is only on its way": Mutant(
        "engine/partition/partition.py",
        "        for change in self.changes:\n            earliest = min(earliest, change.earliest)\n",
        "",
    ),
    "Redis before the ledger": Mutant(
        "engine/partition/change_block.py", "return self.committed and not self.missing", "return not self.missing"
    ),
    "done before Redis has acknowledged": Mutant(
        "engine/commit/block_builder.py",
        "        lane.changes.append(seal.change)\n",
        "        lane.changes.append(seal.change)\n"
        "        for offset in seal.change.records:\n            lane.offsets.done[offset - lane.offsets.base] = 1\n"
        "        lane.overflow_held += len(seal.change.records)\n",
    ),
    "the recovery pointer forgets L": Mutant(
        "engine/partition/progress.py", "mark.offset_max >= low", "mark.offset_max > low + 5"
    ),
    "the recovery pointer forgets change blocks": Mutant(
        "engine/partition/progress.py", "or mark.number > acknowledged ", ""
    ),
    "the recovery pointer is one too far": Mutant(
        "engine/partition/progress.py",
        "                return mark.ledger_offset\n",
        "                return mark.ledger_offset + 1\n",
    ),
    "recovery redoes nothing": Mutant("engine/recovery.py", "        self._redo(lane)\n", ""),
    "recovery forgets what is settled ahead of W": Mutant(
        "engine/recovery.py",
        "{offset: place for offset, place in self._settled_ahead.items() if place > self.watermark}",
        "{}",
    ),
    "what has an entry is decided again": Mutant(
        "engine/intake/decide.py", "if (entry := lane.entries.pop(offset, None)) is not None:", "if False:"
    ),
    "what was read is decided by the table of now": Mutant(
        "engine/intake/decide.py",
        "return table if version in (NOT_DECIDED, table.version) else self._table_at(version)",
        "return table",
    ),
    "settled before all is acknowledged": Mutant(
        "engine/commit/interval.py", "return self.acknowledged == self.sent", "return True"
    ),
    "the commit is one ahead": Mutant("engine/commit/at_least_once.py", "(state.low, encode", "(state.low + 1, encode"),
    "what was revoked isn't drained": Mutant(
        "engine/assignment.py", "settled = self._drain(leaving)", "settled = True"
    ),
    "what was lost is written on": Mutant(
        "engine/assignment.py", "            lane.dropped = True\n", "            pass\n"
    ),
    "an expired record is emitted": Mutant(
        "engine/emission/emitter.py", "if 0 <= parcel.expires_ms < now_ms:", "if False:"
    ),
    "what Redis has may name a reserved target": Mutant(
        "engine/emission/targets.py",
        "            return CLOSED if held.target in self._reserved else None\n",
        "            return None\n",
    ),
    "a record goes wherever some have left to": Mutant(
        "engine/emission/targets.py",
        "return self._own if topic in self._reserved else self.partitions",
        "return self.partitions",
    ),
    "what Redis has may name a reserved topic for dead letters": Mutant(
        "engine/emission/emitter.py", "if topic != self._quarantine and self._targets.is_reserved(topic):", "if False:"
    ),
    "the engine sleeps over what comes near": Mutant(
        "engine/emission/emitter.py", "        lane.agenda.expect(lane, min(map(due_of, records)))\n", ""
    ),
    "wheels don't hear that the clock was set back": Mutant(
        "engine/partition/agenda.py", "        if now_ms < before_ms:\n", "        if False:\n"
    ),
    "a full producer drops a record": Mutant(
        "engine/emission/emitter.py",
        "        batch.start += len(taken)\n",
        "        batch.start += len(taken) + (len(taken) < len(batch.records) - batch.start)\n",
    ),
    "a transaction goes without its offsets": Mutant(
        "engine/commit/transaction.py", "        if transaction.states:\n", "        if False:\n", TRANSACTIONS
    ),
    "a transaction is committed before all is acknowledged": Mutant(
        "engine/commit/transaction.py",
        "return not interval.failures and not any(block.error for block in transaction.blocks)",
        "return True",
        TRANSACTIONS,
    ),
    "an unknown end is taken for a commit": Mutant(
        "engine/commit/transaction.py",
        "            return OutcomeUnknown(cause.str())\n",
        "            return Committed()\n",
        TRANSACTIONS,
    ),
    "an unknown end is taken for an abort": Mutant(
        "engine/commit/transaction.py",
        "            return OutcomeUnknown(cause.str())\n",
        "            return Aborted(cause, of_records)\n",
        TRANSACTIONS,
    ),
    "a lost partition's transaction is committed": Mutant(
        "engine/commit/exactly_once.py",
        "            transaction.doomed = True\n            return\n",
        "            pass\n",
        TRANSACTIONS,
    ),
    "a block is written ahead of one that may have to be written again": Mutant(
        "engine/commit/exactly_once.py",
        "        if self._ending is not None:\n            return False\n",
        "",
        TRANSACTIONS,
    ),
    "an aborted block is forgotten": Mutant(
        "engine/commit/exactly_once.py",
        "            restore_sealed(block.lane, block.seal)\n",
        "            pass\n",
        TRANSACTIONS,
    ),
    "aborted records are forgotten": Mutant(
        "engine/commit/exactly_once.py",
        "        self._refusals.take_back(interval, transaction.careful)\n",
        "        pass\n",
        TRANSACTIONS,
    ),
    "a refused record is forgotten": Mutant("engine/commit/at_least_once.py", "if interval.failures:", "if False:"),
    "a cancelled record of the wheel fires": Mutant(
        "engine/intake/control_records.py", "            self._emitter.withdraw(lane, held)\n", "            pass\n"
    ),
    "a struck record is promoted": Mutant(
        "engine/partition/progress.py",
        "        self.skip[held.offset] = held.position\n        self.struck",
        "        self.struck",
    ),
    "a record that is about to go to the overflow goes there although it has left": Mutant(
        "engine/partition/partition.py", "        self.puts = kept\n", ""
    ),
    "what the overflow finds is believed": Mutant(
        "engine/intake/control_records.py",
        "if held is not None and (held.position <= lane.promotion.cursor or held.offset in lane.promotion.skip):",
        "if False:",
    ),
    "an action acts on what came after it": Mutant(
        "engine/intake/control_records.py",
        "isinstance(one, Held) and one.offset < item.offset]",
        "isinstance(one, Held)]",
    ),
    "another key replaces too": Mutant(
        "engine/intake/control_records.py",
        "return found.key == item.key and item.origin is None",
        "return item.origin is None",
    ),
    "a copied id replaces": Mutant(
        "engine/intake/control_records.py",
        "return found.key == item.key and item.origin is None",
        "return found.key == item.key",
    ),
    "who has an id doesn't wait for its turn": Mutant(
        "engine/intake/control_records.py",
        "            if queue is None:\n                waiting",
        "            if True:\n                waiting",
    ),
    "recovery forgets what is carried": Mutant(
        "engine/recovery.py", "                lane.entries.setdefault(held.offset, held)\n", "                pass\n"
    ),
    "recovery forgets what is struck": Mutant("engine/recovery.py", "                    struck=struck,\n", ""),
    "a rebuild forgets what is struck": Mutant(
        "engine/storage/rebuild.py", "struck_out(block.settled) if block.number > self._hw else []", "[]"
    ),
    "an aborted cancellation is forgotten": Mutant(
        "engine/commit/block_builder.py",
        "    lane.departed[:0] = seal.silent  # the others are produced again\n",
        "",
        TRANSACTIONS,
    ),
    "a moved record takes its payload from its control record": Mutant(
        "model/header_codec.py", 'size + len(key or b"") + len(value or b""), source,', "size, -1,"
    ),
    "struck records are counted as promoted": Mutant(
        "engine/partition/partition.py",
        "                elif offset in struck:\n                    self.overflow_held -= 1\n",
        "",
    ),
    "a block may be as large as it likes": Mutant(
        "engine/commit/block_builder.py", "        if not excess or not rows.divisible:\n", "        if True:\n"
    ),
    # --- recovery -----------------------------------------------------------------------------------------------
    "a log that was cut back is taken for what was read": Mutant(
        "engine/source_cuts.py", "                note_cut(replay, cut)\n", "                pass\n"
    ),
    "behind a cut payloads are looked for at the lane's offsets": Mutant(
        "engine/storage/rebuild.py", "if not cuts:", "if True:"
    ),
    "behind a cut a commit has the lane's offset": Mutant(
        "engine/commit/block_builder.py", "low=lane.cuts.log_offset(lane.offsets.low),", "low=lane.offsets.low,"
    ),
    # That recovery remembers how these were decided shows only when they would be decided otherwise now, by a later
    # program: the tables of then decide them as they did.
    "what W has passed and the wheel held is taken for Redis' own": Mutant(
        "engine/recovery.py", "            if held.position <= self.watermark:", "            if False:"
    ),
    "what was overtaken isn't counted as Redis' own": Mutant(
        "engine/partition/partition.py",
        "            count += sum(is_open(offset)",
        "            count += 0 * sum(is_open(offset)",
        "overtaken",  # what is promoted corrects the count
        "unit/engine/test_engine.py",
    ),
    "recovery begins at the commit's own block": Mutant(
        "engine/recovery_reader.py",
        "pointer = min(state.recovery_pointer, state.block_offset if state.block_offset >= 0 else end)",
        "pointer = max(state.recovery_pointer, state.block_offset)",
    ),
    "a recovery that ends after its partition was revoked is taken in": Mutant(
        "engine/assignment.py",
        "fresh = [lane for lane in job.future.result() if lane.id in job.lanes]",
        "fresh = list(job.future.result())",
    ),
    "blocks say nothing about L": Mutant(
        "engine/recovery.py", "self._settled_below = max(self._settled_below, _settled_below(block))", "pass"
    ),
    "Redis may be ahead of the ledger": Mutant(
        "engine/recovery.py", "        if self.hw > written and not self._trusted:", "        if False:"
    ),
    "blocks of a former topic count": Mutant(
        "engine/recovery.py", "        if another or (self._blocks", "        if (self._blocks"
    ),
    "what recovery counts begins at the commit": Mutant(
        "engine/recovery.py",
        "            self._counted_to = block.acknowledged",
        "            self._counted_to = self.acknowledged",
        "counted",
        "unit/engine/test_recovery.py",
    ),
    "without a commit the ledger is read to its stable end": Mutant(
        "engine/recovery_reader.py",
        "            if one.state is not None:\n                untils[",
        "            if True:\n                untils[",
        TRANSACTIONS,
    ),
    "a commit's own block may be anybody's": Mutant(
        "engine/recovery_reader.py",
        "        if one.own_block >= 0:\n            return (",
        "        if False:\n            return (",
    ),
    "a partition of which nothing is left begins as a new one": Mutant(
        "engine/recovery_reader.py", "        if one.replay.hw <= 0 and self._starts.has_commits():", "        if True:"
    ),
    "the setting `start` wins over the ledger": Mutant(
        "engine/recovery.py", "        if not self._blocks and self._earliest >= 0:", "        if False:"
    ),
    "an entry below L may be missing in Redis": Mutant(
        "engine/recovery.py", "        self.acknowledged = max(self.acknowledged, self._acknowledged_by_low())\n", ""
    ),
    "a topic made anew counts its changes from 1": Mutant(
        "engine/recovery.py", "        if self._begun or not self._former:\n", "        if True:\n"
    ),
    # --- the overflow and its watermark ---------------------------------------------------------------------------
    "W ignores what is struck": Mutant(
        "engine/partition/progress.py",
        "        if self.struck:  # who has left ahead",
        "        if False:  # who has left ahead",
    ),
    "W counts as committed before it is": Mutant(
        "engine/commit/exactly_once.py",
        "            transaction.states.append((lane, commit_state(lane, lane.held_as_found(True), self._ledger)))",
        "            transaction.states.append((lane, commit_state(lane, lane.held_as_found(True), self._ledger)))\n"
        "            lane.ledger.committed_watermark = lane.promotion.watermark",
        TRANSACTIONS,
    ),
    "promotion goes on in a lane that lost something": Mutant(
        "engine/storage/overflow_worker.py",
        "            if lane.loss is not None:  # found meanwhile: the rebuild knows the cursor as it is\n"
        "                lane.promotion.promised = None\n            elif not lane.leaving:",
        "            if not lane.leaving:",
        "lost_something_meanwhile",
        "unit/engine/storage/test_overflow_worker.py",
    ),
    "what comes into the overflow since it was seen to be empty is passed over": Mutant(
        "engine/partition/partition.py",
        "        self.promotion.vacant = min(self.promotion.vacant, just_before(change.earliest))\n",
        "",
    ),
    "the cursor moves past a record that a promotion has seen": Mutant(
        "engine/storage/overflow_worker.py",
        "start = lane.promotion.cursor = min(until, lane.promotion.vacant)",
        "start = lane.promotion.cursor = until",
    ),
    "what was seen before a loss counts after it": Mutant(
        "engine/partition/partition.py",
        "            self.promotion.vacant = NOWHERE\n",
        "",
        "before_a_loss",
        "unit/engine/storage/test_overflow_worker.py",
    ),
    "the rebuild pointer goes by W as it is now": Mutant(
        "engine/partition/partition.py",
        "        pointer = self.ledger.rebuild_pointer()\n",
        "        kept, self.ledger.committed_watermark = self.ledger.committed_watermark, self.promotion.watermark\n"
        "        pointer = self.ledger.rebuild_pointer()\n"
        "        self.ledger.committed_watermark = kept\n",
    ),
    "a rebuild begins where a recovery does": Mutant(
        "engine/partition/partition.py",
        "        return self.recovery_pointer() if pointer is None else pointer",
        "        return self.recovery_pointer()",
    ),
    "what is struck in an aborted block stays struck": Mutant(
        "engine/commit/block_builder.py",
        "        seal.change.struck = []  # these go with their records' settlement, in another change\n",
        "",
        "struck",
        "unit/engine/commit/test_block_builder.py",
    ),
    "what is on its way is forgotten when W passes it": Mutant(
        "engine/partition/partition.py",
        "if self.offsets.is_done(offset) and not any(offset in change.records for change in self.changes):",
        "if True:",
    ),
    "a record is settled in the block that writes its change again": Mutant(
        "engine/commit/block_builder.py",
        "return _Rows(again, [], [], list(again.records.values()))",
        "return _Rows(again, lane.settled[:SETTLED_PER_BLOCK_MAX], [], list(again.records.values()))",
        TRANSACTIONS,
    ),
    # --- letting go -----------------------------------------------------------------------------------------------
    "what a revoked lane was about to put stays": Mutant(
        "engine/assignment.py", "            lane.puts = []\n", "", "revoked_partition", "unit/engine/test_engine.py"
    ),
    "a transaction is committed by nobody": Mutant(
        "engine/commit/exactly_once.py",
        "        if not transaction.member.is_named:\n",
        "        if False:\n",
        TRANSACTIONS,
    ),
    # --- actions --------------------------------------------------------------------------------------------------
    "an action on one offset acts on whatever is held": Mutant(
        "engine/intake/control_records.py", "item.if_offset not in (-1, found.offset)", "False"
    ),
    # --- time -----------------------------------------------------------------------------------------------------
    "a process begins by its machine's own clock": Mutant(
        "engine/engine.py", "self._knows_time = False", "self._knows_time = True"
    ),
    "what has fired before the clock was set back goes": Mutant(
        "engine/emission/emitter.py", "        if parcel.due_ms > now_ms:\n", "        if False:\n"
    ),
    "a batch that has fired before the clock was set back goes": Mutant(
        "engine/emission/emitter.py", "if now_ms < self._fired_ms else 0", "if False else 0"
    ),
    # These two go back to their wheels before they are handed over, and have taken a turn that others needed.
    "what waits at the gate goes though the clock was set back": Mutant(
        "engine/emission/due_queue.py",
        "while heap and heap[0][0] <= now_ms:",
        "while heap:",
        "not_due_any_more",
        "unit/engine/test_clock_set_back.py",
    ),
    "what waits in its order goes though the clock was set back": Mutant(
        "engine/emission/queues.py",
        "if held.due_ms > now_ms or order.must_wait",
        "if order.must_wait",
        "not_due_any_more",
        "unit/engine/test_clock_set_back.py",
    ),
    "a transaction that comes too early is committed": Mutant(
        "engine/commit/interval.py",
        "        return any(\n            handed",
        "        return False and any(\n            handed",
        TRANSACTIONS,
    ),
}
FAST: Final = (
    "W is C, whatever is unsettled",
    "done before Redis has acknowledged",
    "recovery redoes nothing",
    "aborted records are forgotten",
)
