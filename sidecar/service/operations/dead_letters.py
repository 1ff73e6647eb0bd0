"""The parts that handle dead letters, made from the settings."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from policies.retention import policies_of
from policies.table import PolicyTable
from policies.topic.store import PolicyStore
from sidecar.kafka.topic_follower import TopicReader
from sidecar.kafka.topics import TopicIds, source_topics
from sidecar.operations.dead_letters.browse import Limits
from sidecar.operations.dead_letters.dead_letter_log import KafkaLetterLog, LetterLog
from sidecar.operations.dead_letters.masking import Masking
from sidecar.operations.dead_letters.reading import Reading, Rules, letter_topics
from sidecar.operations.dead_letters.redrive_context import RedriveContext
from sidecar.operations.dead_letters.redrive_plan import FORM, Governor, Redrive
from sidecar.operations.dead_letters.redrive_routing import Ways
from sidecar.operations.dead_letters.redrive_run import RedriveRun
from sidecar.operations.dead_letters.redriven_log import RedrivenLog
from sidecar.operations.dead_letters.redrives import Redrives, Topics
from sidecar.operations.dead_letters.resending import Resending
from sidecar.operations.jobs.job import JobLog, State
from sidecar.operations.jobs.run import JobRun, RunContext
from sidecar.operations.jobs.runner import owner_of
from sidecar.operations.jobs.transactional_sender import TransactionalSender
from sidecar.settings.settings import Settings


def redriven_of(settings: Settings, reader: TopicReader) -> RedrivenLog:
    """Follower of the topic of letters that were sent again; to be started and stopped."""
    return RedrivenLog(reader, settings.redriven_topic, TopicIds(reader.client).of)


def reading_of(
    settings: Settings, client: Mapping[str, Any], table: Callable[[], PolicyTable], redriven: RedrivenLog
) -> Reading:
    """Reader of dead letters for REST."""
    return Reading(lambda: KafkaLetterLog(client, settings.group), table, rules_of(settings), redriven)


def rules_of(settings: Settings) -> Rules:
    """Rules of reading letters: which ones, how many at once, and what of them is masked."""
    asked = settings.dead_letters
    limits = Limits(asked.scan_records, asked.scan_time_ms / 1_000)
    return Rules(asked.topics, settings.quarantine.topic, limits, Masking(asked.mask))


def governor_of(settings: Settings) -> Governor:
    """How carefully letters are sent where a plan says nothing."""
    asked = settings.redrive
    return Governor(rate=asked.rate, ramp_ms=asked.ramp_ms, stop_share=asked.stop_share, watch_ms=asked.watch_ms)


def redrives_of(
    settings: Settings, reader: TopicReader, store: PolicyStore, reading: Reading, redriven: RedrivenLog
) -> tuple[Redrives, JobLog[Redrive]]:
    """Redrives, and the log they are in; both to be started and stopped."""
    client, redrive_log = reader.client, JobLog(reader, settings.redrive_topic, FORM)

    def open_log() -> LetterLog:
        return KafkaLetterLog(client, settings.group)

    def partitions() -> Mapping[str, int]:
        with closing(open_log()) as log:
            return log.topics()

    def ways(existing: Iterable[str]) -> Ways:
        anybodys = settings.model_copy(update={"sources": ()})  # some are other replicas', by their own setting
        return Ways(settings.reserved_topics, frozenset(source_topics(anybodys, policies_of(store.table), existing)))

    def letters(log: LetterLog) -> frozenset[str]:
        return frozenset(letter_topics(list(log.topics()), store.table, reading.rules.topics, reading.rules.quarantine))

    def transactional_id(plan_id: str) -> str:
        return f"tickover.{settings.group}.redrive.{plan_id}"

    def leg(plan_id: str, state: State | None, count: int) -> JobRun[Redrive, RedriveRun]:
        begin = None if state is None else lambda work: work.begin(state, count)
        return JobRun(plan_id, begin, stage)

    topic_id = TopicIds(client).of_one
    topics = Topics(lambda log, topic: _choose(reading, log, topic), letters, settings.reserved_topics, topic_id)
    owner = owner_of(settings.instance_id)
    redrives = Redrives(redrive_log, open_log, topics, leg, owner, settings.changes.approval)
    here = RedriveContext(
        client=client,
        log=redrive_log,
        redriven=redriven,
        versions=store.versions,
        partitions=partitions,
        open_log=open_log,
        topic_id=topic_id,
        owner=owner,
        group=settings.group,
        ways=ways,
        loops_max=settings.redrive.times_max,
        monotonic_s=time.monotonic,
        wait=redrives.crew.wait,
    )
    stage = RunContext(
        client, redrive_log, transactional_id, lambda job, shipping: RedriveRun(job, shipping, here), here.wait
    )
    return redrives, redrive_log


def resending_of(settings: Settings, client: Mapping[str, Any], redriven: RedrivenLog, redrives: Redrives) -> Resending:
    """Sender of single quarantined records."""

    def begin(plan: str) -> TransactionalSender:
        return TransactionalSender(client, f"tickover.{settings.group}.redrive.{plan}", settings.redriven_topic)

    return Resending(begin, redriven, redrives.all, redrives.crew.jobs.now_ms)


def _choose(reading: Reading, log: LetterLog, topic: str) -> None:
    """Raises UnknownTopic."""
    reading.chosen(log, (topic,))
