"""Mistakes put on purpose into what operators start: the runs of this folder must find each (`tests/mutants.py`)."""

from typing import Final

from tests.mutations import Mutant

CHANGES: Final = "operations/test_changes.py"
MESSAGES: Final = "operations/test_messages.py"
POLICIES: Final = "operations/test_policies.py"
SCHEDULES: Final = "operations/test_schedules.py"
REDRIVES: Final = "operations/test_redrives.py"
JOBS: Final = "operations/test_jobs.py"

# Mends of the same review that lie beside what these runs express: one answer, one row, one date. A test has each.
ELSEWHERE: Final[dict[str, Mutant]] = {
    "what is large goes with all others": Mutant(
        "operations/schedules/firing.py",
        "elif job.size > ROOM.size or len(job.parcels) > ROOM.records:",
        "elif not job.name:",
        suite="unit/operations/schedules/test_schedule_apart.py",
    ),
    "a clock changes by whole hours": Mutant(
        "operations/schedules/cron.py",
        "if (begin := _change(place.key, first, instant)) is not None:",
        "if begin is not None:",
        tests="by_passing_time",
        suite="property/operations/schedules/test_cron.py",
    ),
    "a bulk change takes a partition as far as it is read": Mutant(
        "lookup/meeting.py",
        "if read.get(lane, -1) < end}",
        "if lane not in read}",
        suite="unit/operations/bulk/test_change_partitions.py",
    ),
    "what an internal topic has ends its reader": Mutant(
        "kafka/topic_follower.py",
        "        except Exception as error:  # noqa: BLE001 - whatever",
        "        except KafkaException as error:  # noqa: BLE001 - whatever",
        tests="nobody_thought_of",
        suite="unit/operations/jobs/test_jobs.py",
    ),
    "a job is begun that is about to be forgotten": Mutant(
        "operations/jobs/job.py",
        "self.plan.created_ms > BEGUN_WITHIN_MS",
        "self.plan.created_ms > JOBS_KEPT_MS",
        tests="almost_forgotten",
        suite="unit/operations/jobs/test_jobs.py",
    ),
    "a late release ends the lease of another": Mutant(
        "api/idempotency.py",
        "if redis.call('HMGET', KEYS[1], 'holder')[1] == ARGV[1] then redis.call('HSET'",
        "if true then redis.call('HSET'",
        suite="contract/api/test_idempotency.py",
    ),
    "a late refusal deletes the answer of another": Mutant(
        "api/idempotency.py",
        "if had[1] == ARGV[1] and not had[2] then",
        "if true then",
        suite="contract/api/test_idempotency.py",
    ),
    "a receipt names the message of a later reschedule": Mutant(
        "api/routes/actions.py",
        "if hit.offset > control.offset:",
        "if hit.offset < 0:",
        suite="unit/api/routes/test_api_actions.py",
    ),
    "REST takes messages for what nobody consumes": Mutant(
        "api/sources.py",
        "    if not consumed:",
        "    if consumed is None:",
        suite="unit/api/routes/test_api_messages.py",
    ),
    "a policy that Kafka has taken late is called not written": Mutant(
        "policies/topic/store.py",
        "if error.code() not in _REFUSED:",
        "if error.code() == 0:",
        suite="unit/policies/topic/test_policy_writes.py",
    ),
    "a producer of REST is kept whatever has happened to it": Mutant(
        "policies/kafka_clients.py",
        "            if not is_fatal(error.args[0]):",
        "            if True:",
        suite="unit/api/test_api_sender.py",
    ),
    "a look-up knows only what is consumed here": Mutant(
        "service/sources.py",
        "**{name: sizes[name] for name in self._elsewhere.intersection(known)},",
        "",
        suite="unit/service/test_sources.py",
    ),
    "nobody asks who has the sources of a new group": Mutant(
        "doctor/other_groups.py",
        "    if others:\n        raise NewGroupError",
        "    if not topics:\n        raise NewGroupError",
        suite="unit/doctor/test_other_groups.py",
    ),
    "a row without an answer is failed and sent again": Mutant(
        "pipeline/sending/sending.py",
        'raise Unanswered(f"nobody knows whether a transaction was committed: {error.args[0].str()}") from error',
        "return {parcels[0].place: error.args[0]}",
        tests="was_not_answered",
        suite="pipeline/sending/test_sending.py",
    ),
    "a row goes to a partition of its own": Mutant(
        "pipeline/sending/sending.py",
        'source_partition(key, (row.get("message_id") or row["id"]).encode(), count)',
        'source_partition(key, (row.get("message_id") or row["id"]).encode()[::-1], count)',
        tests="where_rest_sends",
        suite="pipeline/sending/test_sending.py",
    ),
    "whoever carries the id of a row has sent it": Mutant(
        "pipeline/sending/dispatch.py",
        ".where(header(JOB) == part.mark)",
        "",
        tests="only_what_the_slice",
        suite="pipeline/sending/test_dispatch.py",
    ),
    "partitions that were added meanwhile are not read": Mutant(
        "pipeline/sending/dispatch.py",
        "start = starts.get(name, 0)",
        "start = starts.get(name, end)",
        tests="partition_that_was_added",
        suite="pipeline/sending/test_dispatch.py",
    ),
    "a topic made anew is read on": Mutant(
        "pipeline/ingest/stream.py",
        "if known and now and known != now and",
        "if not known and now and",
        tests="made_anew_is_refused",
        suite="pipeline/ingest/test_ingest.py",
    ),
    "letters go without headers that can't be read": Mutant(
        "pipeline/ingest/kafka_source.py",
        "[(UNREADABLE, None)]",
        "None",
        tests="headers_cannot_be_read",
        suite="pipeline/sending/test_redrive.py",
    ),
    "a time is rounded down": Mutant(
        "pipeline/sending/schedule.py",
        'more = F.when(digits.rlike("^...0*[1-9]"), 1).otherwise(0)',
        "more = F.lit(0)",
        tests="rounded_up",
        suite="pipeline/sending/test_schedule.py",
    ),
    "headers that can't be read are left out": Mutant(
        "pipeline/sending/schedule.py",
        'F.when(F.col(own).isNull(), "headers: not JSON of a map of text")\n        .when(unreadable',
        "F.when(unreadable",
        tests="headers_cannot_be_read",
        suite="pipeline/sending/test_schedule.py",
    ),
    "headers of tickover's own pass": Mutant(
        "pipeline/sending/schedule.py",
        'one["key"].startswith(CONTROL_PREFIX))',
        'one["key"].startswith("~"))',
        tests="come_to_something_else",
        suite="pipeline/sending/test_schedule.py",
    ),
    "the id of a row depends on others": Mutant(
        "pipeline/sending/schedule.py",
        'Window.partitionBy("content", F.col("given").isNull())',
        'Window.partitionBy("content")',
        tests="nothing_but_its_row",
        suite="pipeline/sending/test_schedule.py",
    ),
    "what a record was decided to be doesn't travel with it": Mutant(
        "pipeline/sending/schedule.py",
        "    asked |= {name: F.col(column) for column, name in MORE.items()}\n",
        "",
        tests="more_columns_say",
        suite="pipeline/sending/test_schedule.py",
    ),
    "a row without its payload is sent": Mutant(
        "pipeline/sending/schedule.py",
        'F.when(~known, "payload',
        'F.when(known.isNull(), "payload',
        tests="more_columns_cannot",
        suite="pipeline/sending/test_schedule.py",
    ),
    "a control record is a message that failed": Mutant(
        "pipeline/reports/backtest.py",
        "records.where(~acts)",
        "records",
        tests="control_record",
        suite="pipeline/reports/test_backtest.py",
    ),
    "what the ledger doesn't have here is lost": Mutant(
        "pipeline/reports/reconcile.py",
        'return F.col("offset") >= one["since"]',
        "return F.lit(True)",
        tests="before_the_ledger_begins",
        suite="pipeline/reports/test_reconcile.py",
    ),
}

MUTANTS: Final[dict[str, Mutant]] = {
    "a change takes any topic of the name": Mutant(
        "operations/bulk/run.py", "if now[topic] != id}", "if now[topic] == ''}", suite=CHANGES
    ),
    "a change passes over partitions that do not answer": Mutant(
        "operations/bulk/run.py", "                if not missing:\n", "                if True:\n", suite=CHANGES
    ),
    "a change takes what came after its plan": Mutant(
        "operations/bulk/run.py",
        "if key.offset >= self._ends.get(TopicPartition(key.topic, key.partition), -1):",
        "if False:",
        suite=CHANGES,
    ),
    "a change acts on what somebody has moved": Mutant(
        "operations/bulk/control_sender.py", " (IF_OFFSET, str(item.offset)),", "", suite=CHANGES
    ),
    "a receipt claims what somebody else did": Mutant(
        "operations/bulk/outcome.py", "(by == control or by in sent)", "True", suite=CHANGES
    ),
    "what was pending at a crash is not looked at": Mutant(
        "operations/bulk/run.py",
        "        if self._progress.pending:\n            self._hear()\n",
        "        if False:\n            self._hear()\n",
        suite=CHANGES,
    ),
    "a batch is not written down before it is sent": Mutant(
        "operations/bulk/run.py",
        "self._write([], pending=chosen, at=_key(chosen[-1]))",
        "self._note(pending=chosen, at=_key(chosen[-1]))",
        suite=CHANGES,
    ),
    "a change goes on though it was aborted": Mutant(
        "operations/bulk/run.py",
        "        except _End:\n            if self._here.aborted(self._plan.id):",
        "        except _End:\n            if False:",
        suite=CHANGES,
    ),
    "a schedule begins by the clock of the machine that was asked": Mutant(
        "operations/schedules/schedule_book.py",
        "value, _stamped(written, appended_ms))",
        "value, written)",
        suite=SCHEDULES,
    ),
    "another expression goes on with the count": Mutant(
        "operations/schedules/store.py",
        "if former is not None and former.schedule.times() == schedule.times():",
        "if former is not None:",
        suite=SCHEDULES,
    ),
    "an instant is written again by a new count": Mutant(
        "operations/schedules/owing.py",
        "*(at_ms for at_ms in in_time if at_ms not in progress.ahead)",
        "*in_time",
        suite=SCHEDULES,
    ),
    "what waits for its partition is missed": Mutant(
        "operations/schedules/owing.py", "min(now_ms, progress.waiting_ms or now_ms)", "now_ms", suite=SCHEDULES
    ),
    "what is apart goes on with what an earlier tenure knew": Mutant(
        "operations/schedules/firing.py", "            apart.begin_anew()\n", "            pass\n", suite=SCHEDULES
    ),
    "two redrives of the same letters take no turns": Mutant(
        "operations/dead_letters/redrive_run.py",
        "        if not self._is_planning and not self._has_its_turn():\n",
        "        if False:\n",
        suite=REDRIVES,
    ),
    "letters go without their marks": Mutant(
        "operations/dead_letters/redrive_run.py",
        "            self._write(going, marks, **self._sent_update(parcels, skipped, positions))",
        "            self._write(going, [], **self._sent_update(parcels, skipped, positions))",
        suite=REDRIVES,
    ),
    "what was redriven is redriven again": Mutant(
        "operations/dead_letters/redrive_run.py",
        "if not self._plan.again and (sent := self._pen.sent(letter.place)):",
        "if (sent := None):",
        suite=REDRIVES,
    ),
    "a redrive takes any topic of the name": Mutant(
        "operations/dead_letters/dead_letter_log.py",
        "    if now != plan.topic_id:\n",
        "    if False:\n",
        suite=REDRIVES,
    ),
    "letters that retention took are told of nowhere": Mutant(
        "operations/dead_letters/redrive_run.py",
        "max(progress.planned.all - progress.tally.all, 0)",
        "0",
        suite=REDRIVES,
    ),
    "an aborted redrive goes on": Mutant(
        "operations/dead_letters/redrive_run.py",
        "if redrive is None or redrive.aborted_by is None:",
        "if True:",
        suite=REDRIVES,
    ),
    "marks name no topic": Mutant(
        "operations/dead_letters/redrive_run.py",
        "pen(plan.id, plan.topic, plan.topic_id, discards)",
        'pen(plan.id, plan.topic, "other", discards)',
        suite=REDRIVES,
    ),
    "what is to be discarded is sent": Mutant(
        "operations/dead_letters/redrive_routing.py",
        "if self._plan.action is Action.DISCARD:",
        "if False:",
        suite=REDRIVES,
    ),
    "letters that are not named are meant": Mutant(
        "operations/dead_letters/redrive_plan.py",
        "if self.letters and place.offset not in self.letters.get(place.partition, ()):",
        "if False:",
        suite=REDRIVES,
    ),
    "another producer goes on whoever has taken over": Mutant(
        "operations/dead_letters/redrive_run.py",
        "if now is None or now.progress != self._written:",
        "if False:",
        suite=REDRIVES,
    ),
    "what a deleted policy holds is let go": Mutant(
        "service/sources.py",
        "found = sorted({*wanted, *(topic for topic in self.left if sizes.get(topic))})",
        "found = sorted(wanted)",
        suite=POLICIES,
    ),
    "a topic that has a policy again is still emptied": Mutant(
        "service/sources.py", " or table is not self._asked_of", "", suite=POLICIES
    ),
    "nobody is told what would be left behind": Mutant(
        "service/sources.py", "return self._leftovers.of(gone)", "return {}", suite=POLICIES
    ),
    "new records are decided by policies that are gone": Mutant(
        "service/sources.py", "retired = frozenset(found)", "retired = frozenset()", suite=POLICIES
    ),
    "a cancel doesn't look for what isn't read yet": Mutant(
        "api/routes/actions.py",
        "find = ports.lookup.find if pause_s is not None else ports.lookup.find_to_end",
        "find = ports.lookup.find",
        suite=MESSAGES,
    ),
    "a look-up doesn't look for what isn't read yet": Mutant(
        "api/routes/held.py", "to_end=pause_s is None", "to_end=False", suite=MESSAGES
    ),
    "an action names no offset": Mutant(
        "api/routes/actions.py", " (IF_OFFSET, str(place.offset)),", "", suite=MESSAGES
    ),
    "what has left is sent again when its key is lost": Mutant(
        "api/routes/messages.py",
        "if message.id is None and (left :=",
        "if message.id == '' and (left :=",
        suite=MESSAGES,
    ),
    "each try has an id of its own": Mutant(
        "api/routes/messages.py",
        "message.id or id or repeatable_id(key, fingerprint)",
        "message.id or new_id()",
        suite=MESSAGES,
    ),
    "what is apart waits behind another one that is apart": Mutant(
        "operations/schedules/apart.py",
        "_replace(is_complete=True, moved=self._elsewhere)",
        "_replace(is_complete=True)",
        suite=SCHEDULES,
    ),
    "who holds up a transaction doesn't go apart": Mutant(
        "operations/schedules/firing.py",
        "        for key, names in guilty.items():\n            log.warning(",
        "        for key, names in ():\n            log.warning(",
        suite=SCHEDULES,
    ),
    "what schedules owe is written by a clock that nobody has confirmed": Mutant(
        "service/operations/schedules.py", "time.now_ms() if time.is_known else None", "time.now_ms()", suite=SCHEDULES
    ),
    "a writer of schedules doesn't know its own record": Mutant(
        "operations/schedules/store.py",
        "if tried is not None and (made :=",
        "if tried is None and (made :=",
        suite=SCHEDULES,
    ),
    "what was said before a plan is passed over": Mutant(
        "operations/jobs/job.py", 'elif kind in ("progress", "abort", "approval"):', "elif not kind:", suite=JOBS
    ),
    "the plan of a long job is forgotten": Mutant(
        "operations/jobs/runner.py", "                self.jobs.write_plan(job.plan)\n", "", suite=JOBS
    ),
    "a plan is written again though its job has ended": Mutant(
        "operations/jobs/runner.py", "if job is None or not job.state.is_active:", "if job is None:", suite=JOBS
    ),
    "a lease goes by the clock of who had it": Mutant(
        "operations/jobs/runner.py", "max(min(self._heard[plan_id]),", "max(self._heard[plan_id].said_ms,", suite=JOBS
    ),
    "jobs of former months count": Mutant(
        "operations/jobs/runner.py", "job.plan.created_ms >= since_ms or job.state.is_active]", "since_ms]", suite=JOBS
    ),
    "a plan that is refused is kept": Mutant(
        "operations/jobs/runner.py",
        "        self._refuse_when_busy()\n        if len(self.all())",
        "        if len(self.all())",
        suite=JOBS,
    ),
    "an abort that can't be read ends nothing": Mutant(
        "operations/jobs/job.py",
        "except (ValueError, KeyError, TypeError, AttributeError, RecursionError):",
        "except (ValueError, KeyError, TypeError, AttributeError):",
        suite=JOBS,
    ),
    "an abort is answered before who works has ended": Mutant(
        "operations/jobs/job.py",
        "return State.ABORTING if state.is_active and not (given_up and state is State.PLANNING) else State.ABORTED",
        "return State.ABORTED",
        suite=JOBS,
    ),
    **ELSEWHERE,
}
