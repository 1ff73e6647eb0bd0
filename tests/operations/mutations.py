"""Mistakes put on purpose into what operators start: the runs of this folder must find each (`tests/mutants.py`)."""

from typing import Final

from tests.mutations import Mutant

CHANGES: Final = "operations/test_changes.py"
MESSAGES: Final = "operations/test_messages.py"
POLICIES: Final = "operations/test_policies.py"
SCHEDULES: Final = "operations/test_schedules.py"
REDRIVES: Final = "operations/test_redrives.py"

MUTANTS: Final[dict[str, Mutant]] = {
    "a change takes any topic of the name": Mutant(
        "changes/work.py", "if now[topic] != id}", "if now[topic] == ''}", suite=CHANGES
    ),
    "a change passes over partitions that do not answer": Mutant(
        "changes/work.py", "                if not missing:\n", "                if True:\n", suite=CHANGES
    ),
    "a change takes what came after its plan": Mutant(
        "changes/work.py",
        "if key.offset >= self._ends.get(LaneId(key.topic, key.partition), -1):",
        "if False:",
        suite=CHANGES,
    ),
    "a change acts on what somebody has moved": Mutant(
        "changes/controls.py", " (IF_OFFSET, str(item.offset)),", "", suite=CHANGES
    ),
    "a receipt claims what somebody else did": Mutant(
        "changes/outcome.py", "(by == control or by in sent)", "True", suite=CHANGES
    ),
    "what was pending at a crash is not looked at": Mutant(
        "changes/work.py",
        "        if self._progress.pending:\n            self._hear()\n",
        "        if False:\n            self._hear()\n",
        suite=CHANGES,
    ),
    "a batch is not written down before it is sent": Mutant(
        "changes/work.py",
        "self._write([], pending=chosen, at=_key(chosen[-1]))",
        "self._note(pending=chosen, at=_key(chosen[-1]))",
        suite=CHANGES,
    ),
    "a change goes on though it was aborted": Mutant(
        "changes/work.py",
        "        except _End:\n            if self._here.aborted(self._plan.id):",
        "        except _End:\n            if False:",
        suite=CHANGES,
    ),
    "a schedule begins by the clock of the machine that was asked": Mutant(
        "schedules/schedule_book.py", "value, _stamped(written, appended_ms))", "value, written)", suite=SCHEDULES
    ),
    "another expression goes on with the count": Mutant(
        "schedules/schedule_store.py",
        "if former is not None and former.schedule.times() == schedule.times():",
        "if former is not None:",
        suite=SCHEDULES,
    ),
    "an instant is written again by a new count": Mutant(
        "schedules/owing.py",
        "*(at_ms for at_ms in in_time if at_ms not in progress.ahead)",
        "*in_time",
        suite=SCHEDULES,
    ),
    "what waits for its partition is missed": Mutant(
        "schedules/owing.py", "min(now_ms, progress.waiting_ms or now_ms)", "now_ms", suite=SCHEDULES
    ),
    "what is apart goes on with what an earlier tenure knew": Mutant(
        "schedules/firing.py", "            apart.begin_anew()\n", "            pass\n", suite=SCHEDULES
    ),
    "two redrives of the same letters take no turns": Mutant(
        "letters/legwork.py",
        "        if not self._is_planning and not self._has_its_turn():\n",
        "        if False:\n",
        suite=REDRIVES,
    ),
    "letters go without their marks": Mutant(
        "letters/legwork.py",
        "            self._write(parcels, marks, **self._sent_update(parcels, skipped, positions))",
        "            self._write(parcels, [], **self._sent_update(parcels, skipped, positions))",
        suite=REDRIVES,
    ),
    "what was redriven is redriven again": Mutant(
        "letters/legwork.py", "if not self._plan.again and self._pen.sent(letter.place):", "if False:", suite=REDRIVES
    ),
    "a redrive takes any topic of the name": Mutant(
        "letters/letter_log.py", "    if now != plan.topic_id:\n", "    if False:\n", suite=REDRIVES
    ),
    "letters that retention took are told of nowhere": Mutant(
        "letters/legwork.py", "max(progress.planned.all - progress.tally.all, 0)", "0", suite=REDRIVES
    ),
    "an aborted redrive goes on": Mutant(
        "letters/legwork.py", "if redrive is None or redrive.aborted_by is None:", "if True:", suite=REDRIVES
    ),
    "marks name no topic": Mutant(
        "letters/legwork.py",
        "self._plan.topic, self._plan.topic_id)\n        if not",
        'self._plan.topic, "other")\n        if not',
        suite=REDRIVES,
    ),
    "another producer goes on whoever has taken over": Mutant(
        "letters/legwork.py", "if now is None or now.progress != self._written:", "if False:", suite=REDRIVES
    ),
    "what a deleted policy holds is let go": Mutant(
        "sources.py", "found = sorted({*wanted, *self.left})", "found = sorted(wanted)", suite=POLICIES
    ),
    "a topic that has a policy again is still emptied": Mutant(
        "sources.py", " and table is self._asked_of and", " and", suite=POLICIES
    ),
    "nobody is told what would be left behind": Mutant(
        "sources.py", "return self._leftovers.of(gone) if gone else {}", "return {}", suite=POLICIES
    ),
    "new records are decided by policies that are gone": Mutant(
        "sources.py", "retired = frozenset(found)", "retired = frozenset()", suite=POLICIES
    ),
    "a cancel doesn't look for what isn't read yet": Mutant(
        "api/actions.py",
        "find = ports.lookup.find if pause_s is not None else ports.lookup.find_to_end",
        "find = ports.lookup.find",
        suite=MESSAGES,
    ),
    "a look-up doesn't look for what isn't read yet": Mutant(
        "api/held.py", "to_end=pause_s is None", "to_end=False", suite=MESSAGES
    ),
    "an action names no offset": Mutant("api/actions.py", " (IF_OFFSET, str(place.offset)),", "", suite=MESSAGES),
    "what has left is sent again when its key is lost": Mutant(
        "api/messages.py", "if message.id is None and (left :=", "if message.id == '' and (left :=", suite=MESSAGES
    ),
    "each try has an id of its own": Mutant(
        "api/messages.py", "message.id or repeatable_id(key, fingerprint)", "message.id or new_id()", suite=MESSAGES
    ),
    "what is apart waits behind another one that is apart": Mutant(
        "schedules/apart.py",
        "_replace(is_complete=True, moved=self._elsewhere)",
        "_replace(is_complete=True)",
        suite=SCHEDULES,
    ),
}
