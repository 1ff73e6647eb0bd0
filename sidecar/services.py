"""Kafka and Redis of this process: those of the settings, or embedded ones started for it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sidecar.config import Settings
from sidecar.embedded.kafka import Broker, embedded_kafka
from sidecar.embedded.valkey import EmbeddedValkey
from sidecar.overflow import OverflowUnavailable
from sidecar.overflow_redis import RedisOverflow

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
    redis = kafka = None
    if settings.redis.embedded:
        redis = EmbeddedValkey(data_dir / "valkey")
        redis.start()
        progress(f"Redis: bundled Valkey at {redis.url}")
    try:
        if settings.kafka.embedded:
            kafka = embedded_kafka(data_dir / "kafka", is_java=settings.kafka.embedded_java, progress=progress)
            kafka.start()
            progress(f"Kafka: {kafka.description} at {kafka.bootstrap}")
    except BaseException:
        if redis is not None:
            redis.stop()
        raise
    return Services(
        kafka.bootstrap if kafka is not None else settings.kafka.bootstrap_servers,
        redis.url if redis is not None else settings.redis.url,
        kafka,
        redis,
    )


def report_redis(overflow: RedisOverflow) -> None:
    """A Redis that is away at start is away as it may be later: what needs it waits, and /readyz says so."""
    try:
        findings = overflow.inspect()
    except OverflowUnavailable as error:
        log.warning("redis is away: going on without it", extra={"error": str(error)})
        return
    for finding in findings:
        log.warning("redis", extra={"finding": finding.message, "fix": finding.fix})
