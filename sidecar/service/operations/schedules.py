"""The parts that handle schedules, made from the settings."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from sidecar.kafka.background import in_background
from sidecar.kafka.topic_follower import TopicFollower, TopicReader
from sidecar.model.condition import PauseKind
from sidecar.model.record import TopicPartition
from sidecar.operations.jobs.transactional_sender import TransactionalSender
from sidecar.operations.pauses.store import PauseStore
from sidecar.operations.schedules.firing import Firing
from sidecar.operations.schedules.owing import Limits
from sidecar.operations.schedules.store import ScheduleStore
from sidecar.operations.schedules.writing import FiringContext
from sidecar.service.assembly import Machinery
from sidecar.service.metrics import Recorder
from sidecar.settings.settings import Settings

ANSWER_S: Final = 5.0


class Sources(Protocol):
    """Topics that this process consumes (`sidecar.service.sources.Sources`), with partition counts: all of them, and
    those that may be written to.
    """

    @property
    def partitions(self) -> Mapping[str, int]: ...

    @property
    def open_partitions(self) -> Mapping[str, int]: ...


def schedule_store_of(settings: Settings, reader: TopicReader) -> ScheduleStore:
    """The topic of schedules; to be started and stopped."""
    topic = settings.schedule_topic
    return ScheduleStore(
        topic,
        lambda apply: TopicFollower(reader, topic, apply),
        lambda: TransactionalSender(reader.client, f"tickover.{settings.group}.schedules.pen", topic),
        _now_ms,
    )


def limits_of(settings: Settings) -> Limits:
    """When an occurrence is written, and when it is missed."""
    asked = settings.schedules
    return Limits(asked.look_ahead_ms, asked.grace_ms, asked.missed_max)


def firing_of(
    settings: Settings,
    given: tuple[Mapping[str, Any], ScheduleStore, PauseStore],
    machinery: Machinery,
    sources: Sources,
    recorder: Recorder,
) -> Firing:
    """Writes what schedules owe: the replica that has partition 0 of the first source. `given`: settings of clients,
    the schedules, and what is paused.
    """
    client, store, pauses = given

    def owns() -> bool:
        topics = sources.partitions
        if not topics:
            return False
        answer: Future[bool] = machinery.engine.submit(lambda _: machinery.viewer.has(TopicPartition(min(topics), 0)))
        return answer.result(ANSWER_S)

    def pen(name: str) -> TransactionalSender:
        return TransactionalSender(
            client, f"tickover.{settings.group}.schedules.firing{name and '.'}{name}", store.topic
        )

    def written_to() -> Mapping[str, int]:
        return sources.open_partitions

    more = recorder.schedule, in_background, recorder.keep_schedules, partial(pauses.is_paused, PauseKind.SCHEDULE)
    here = FiringContext(store, limits_of(settings), pen, owns, written_to, clock_of(machinery), *more)
    firing = Firing(here)
    recorder.watch_writer(lambda: firing.is_owner)
    recorder.watch_unread_schedules(lambda: len(store.unread()))
    return firing


def clock_of(machinery: Machinery) -> Callable[[], int | None]:
    """Epoch milliseconds as the engine has them, once that has seen the brokers' clock. It follows no step of the wall
    clock that they don't confirm: one of an hour, for a moment, and an hour's occurrences would count as missed.
    """
    time = machinery.time

    def now_ms() -> int | None:
        answer: Future[int | None] = machinery.engine.submit(lambda _: time.now_ms() if time.is_known else None)
        return answer.result(ANSWER_S)

    return now_ms


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
