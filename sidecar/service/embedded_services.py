"""Kafka and Redis of this process: those of the settings, or embedded ones started for it."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sidecar.doctor.redis import inspect, keep_command
from sidecar.doctor.redis import state as state_of
from sidecar.doctor.redis_tools import RedisTools, redis_tools
from sidecar.embedded.kafka import Broker, embedded_kafka
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.overflow.interface import OverflowFailure, OverflowUnavailable
from sidecar.overflow.redis_overflow import RedisOverflow
from sidecar.service.metrics import Recorder
from sidecar.settings.redis import RedisSettings
from sidecar.settings.settings import Settings

log = logging.getLogger(__name__)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Services:
    """Where they are, and which of them to stop at the end."""

    bootstrap: str
    redis_url: str
    kafka: Broker | None
    redis: EmbeddedValkey | None

    def stop(self) -> None:
        """Stop what was started here. Twice is harmless."""
        for service in (self.kafka, self.redis):
            if service is not None:
                service.stop()


def start_services(settings: Settings, progress: Progress) -> Services:
    """Start what the settings want embedded; it keeps its data below `data_dir`, so that a restart finds it."""
    data_dir: Path = settings.data_dir
    redis: EmbeddedValkey | None = None
    kafka: Broker | None = None
    with ExitStack() as stack:  # for what ends this before its time: what was started is stopped
        if settings.redis.embedded:
            redis = EmbeddedValkey(data_dir / "valkey")
            stack.callback(redis.stop)
            redis.start()
            progress(f"Redis: bundled Valkey at {redis.url}")
        if settings.kafka.embedded:
            kafka = embedded_kafka(data_dir / "kafka", is_java=settings.kafka.embedded_java, progress=progress)
            stack.callback(kafka.stop)
            kafka.start()
            progress(f"Kafka: {kafka.description} at {kafka.bootstrap}")
        stack.pop_all()
    return Services(
        kafka.bootstrap if kafka is not None else settings.kafka.bootstrap_servers,
        redis.url if redis is not None else settings.redis.url,
        kafka,
        redis,
    )


class EvictionRefused(OverflowFailure):
    """Redis throws held records away when it is full, and no setting allows that."""

    def __init__(self, policy: str, tools: RedisTools) -> None:
        super().__init__(
            f"maxmemory-policy of Redis is {policy}: when it is full it throws held records away. Mend it by "
            f"`{keep_command(tools)}`, or let tickover start all the same by redis.allow_eviction "
            "(TICKOVER_REDIS__ALLOW_EVICTION=true): what is thrown away is then rebuilt from Kafka, and late"
        )


class RedisWatch:
    """Looks how Redis is: at start, then now and then. `publish` takes what is wrong for /readyz, "" for nothing."""

    def __init__(self, overflow: RedisOverflow, recorder: Recorder, redis: RedisSettings) -> None:
        self._overflow = overflow
        self._recorder = recorder
        self._allow_eviction = redis.allow_eviction
        self._tools = redis_tools(redis)
        self._evicted_keys = -1  # not asked yet
        self._problem = ""

    def start(self) -> None:
        """Log what should be mended. Raises EvictionRefused.

        A Redis that is away at start is away as it may be later: what needs it waits, and /readyz says so.
        """
        try:
            client = self._overflow.client
            state, findings = state_of(client), inspect(client, self._allow_eviction, self._tools)
        except OverflowUnavailable as error:
            log.warning("redis is away: going on without it", extra={"error": str(error)})
            return
        for finding in findings:
            log.warning("redis", extra={"finding": finding.message, "fix": finding.fix})
        if state.evicting and not self._allow_eviction:
            raise EvictionRefused(state.evicting, self._tools)
        self._evicted_keys = state.evicted_keys

    def look(self, publish: Callable[[str], None]) -> None:
        """Tell metrics, the log and /readyz how it is now. Raises OverflowUnavailable."""
        state = state_of(self._overflow.client)
        is_wrong = bool(state.evicting) and not self._allow_eviction
        # Fewer than before: it was started anew, and counts from 0.
        evicted = max(state.evicted_keys - self._evicted_keys, 0) if self._evicted_keys >= 0 else 0
        self._evicted_keys = state.evicted_keys
        self._recorder.set_redis(state.memory_ratio, state.is_persistent, is_wrong, evicted)
        if evicted:
            log.error("Redis has evicted keys", extra={"count": evicted})
        problem = str(EvictionRefused(state.evicting, self._tools)) if is_wrong else ""
        if problem and not self._problem:
            log.error("Redis may evict held records", extra={"policy": state.evicting})
        self._problem = problem
        publish(problem)
