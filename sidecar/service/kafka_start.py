"""First questions to the brokers: asked again while these are away, which may be for long."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException

from policies.errors import PolicyStoreUnavailable
from policies.kafka_clients import AdminClient
from policies.retention import policies_of
from policies.table import PolicyTable
from policies.topic.store import PolicyStore
from sidecar.doctor.other_groups import refuse_if_new
from sidecar.kafka.commit_reader import group_commits
from sidecar.kafka.errors import is_away
from sidecar.kafka.topic_follower import TopicFollower, TopicReader
from sidecar.kafka.topics import ensure_own_topics, source_topics
from sidecar.ledger.topic import LedgerTopic
from sidecar.operations.jobs.log_writer import LogWriter
from sidecar.operations.pauses.store import PauseStore, PausesUnavailable
from sidecar.service.watched_files import read_policies
from sidecar.settings.settings import Settings

Result = TypeVar("Result")

AGAIN_S: Final = 1.0  # between two tries to reach brokers that are away
ANSWER_S: Final = 10.0


def once_brokers_answer(ask: Callable[[], Result], tell: Callable[[str], object]) -> Result:
    """Result of `ask`, asked again while brokers are away; `tell` is called with each error. Only who runs the process
    gives up: the next start would wait longer.
    """
    while True:
        try:
            return ask()
        except (KafkaException, PolicyStoreUnavailable, TimeoutError) as error:
            if not is_away(error):
                raise
            tell(str(error))
        time.sleep(AGAIN_S)


def open_policies(settings: Settings, client: Mapping[str, str]) -> PolicyStore:
    """The policy topic, read to its end, with what the policies file says; nothing of it is left where that fails."""
    file_policies = read_policies(settings) if settings.policies.file else None
    store = PolicyStore(client, settings.policies.topic, settings.ledger.replication_factor)
    with ExitStack() as if_it_fails:
        if_it_fails.callback(store.stop)
        store.start()
        if file_policies is not None:
            store.publish_file(file_policies)
        if_it_fails.pop_all()
    return store


def open_pauses(settings: Settings, client: Mapping[str, Any]) -> tuple[TopicReader, PauseStore]:
    """The pauses, read to the end of their topic: before that nothing may be emitted; and who reads it, for more such
    topics. Nothing of them is left where that fails. Raises TimeoutError while brokers don't answer.
    """
    reader, topic = TopicReader(client), settings.pause_topic
    store = PauseStore(
        topic,
        lambda apply: TopicFollower(reader, topic, apply),
        partial(LogWriter, reader.client, topic),
        lambda: time.time_ns() // 1_000_000,
    )
    with ExitStack() as if_it_fails:
        if_it_fails.callback(store.stop)
        store.start()
        try:
            store.catch_up()
        except PausesUnavailable as error:
            raise TimeoutError(str(error)) from None
        if_it_fails.pop_all()
    return reader, store


def ensure_topics(settings: Settings, client: Mapping[str, Any], admin: AdminClient, table: PolicyTable) -> LedgerTopic:
    """The ledger, once all topics of tickover's own exist. A group that `start: auto` takes for new by mistake is
    refused before.
    """
    if settings.start == "auto":
        topics = admin.list_topics(timeout=ANSWER_S).topics
        sources = source_topics(settings, policies_of(table), topics)
        refuse_if_new(partial(group_commits, client), settings.group, topics, sources)
    return ensure_own_topics(admin, settings, table)
