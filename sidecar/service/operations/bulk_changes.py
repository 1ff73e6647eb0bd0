"""The parts that change many messages, made from the settings."""

import time
from collections.abc import Callable

from policies.table import PolicyTable
from sidecar.kafka.topic_follower import TopicReader
from sidecar.kafka.topics import TopicIds
from sidecar.operations.bulk.changes import Changes, Terms
from sidecar.operations.bulk.control_sender import ControlRecordSender, SentControls
from sidecar.operations.bulk.outcome import Lines
from sidecar.operations.bulk.plan import FORM, Change
from sidecar.operations.bulk.receipt_log import ReceiptLog
from sidecar.operations.bulk.run import ChangeContext, ChangeWork, LookUp, Sources
from sidecar.operations.jobs.job import JobLog
from sidecar.operations.jobs.run import JobRun, RunContext
from sidecar.operations.jobs.runner import owner_of
from sidecar.settings.settings import Settings


def changes_of(
    settings: Settings, reader: TopicReader, table: Callable[[], PolicyTable], lookup: LookUp, lines: Lines
) -> tuple[Changes, JobLog[Change]]:
    """Changes, and the log they are in; both to be started and stopped."""
    asked, topic, client = settings.changes, settings.changes_topic, reader.client
    change_log = JobLog(reader, topic, FORM)
    receipts = ReceiptLog(client, topic)
    owner = owner_of(settings.instance_id)

    def transactional_id(plan_id: str) -> str:
        return f"tickover.{settings.group}.change.{plan_id}"

    def leg(plan_id: str, begins: bool) -> JobRun[Change, ChangeWork]:
        return JobRun(plan_id, ChangeWork.begin if begins else None, stage)

    def aborted(plan_id: str) -> bool:
        change = change_log.get(plan_id)
        return change is not None and change.aborted_by is not None

    sources = Sources(lookup, TopicIds(client).of)
    changes = Changes(change_log, sources, receipts, leg, owner, Terms(asked.plan_ttl_ms, asked.approval))
    here = ChangeContext(
        topic=topic,
        sources=sources,
        lines=lines,
        table=table,
        courier=lambda: ControlRecordSender(client, settings.reserved_topics),
        sent_by=SentControls(client, topic).of_plan,
        receipts_end=receipts.end,
        aborted=aborted,
        owner=owner,
        in_flight_max=asked.in_flight,
        answer_s=asked.answer_ms / 1_000,
        now_ms=change_log.now_ms,
        monotonic_s=time.monotonic,
        wait=changes.crew.wait,
    )
    stage = RunContext(
        client, change_log, transactional_id, lambda job, shipping: ChangeWork(job, shipping, here), changes.crew.wait
    )
    return changes, change_log
