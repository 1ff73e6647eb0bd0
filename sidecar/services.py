"""Kafka and Redis of this process: those of the settings, or embedded ones started for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from sidecar.config import Settings
from sidecar.embedded.kafka import Broker, MockKafka, embedded_kafka
from sidecar.embedded.valkey import EmbeddedValkey

Progress = Callable[[str], None]

ANSWER_S: Final = 10.0


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
            kafka = embedded_kafka(data_dir / "kafka", progress=progress)
            kafka.start()
            progress(f"Kafka: {kafka.description} at {kafka.bootstrap}")
            if isinstance(kafka, MockKafka):
                make_mock_topics(
                    kafka.bootstrap, (settings.policies.topic, settings.ledger_topic, settings.quarantine.topic)
                )
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


def make_mock_topics(bootstrap: str, names: Iterable[str]) -> None:
    """Make topics in the mock cluster: it refuses to create them by request, but makes those it is asked about."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name in names:
        admin.list_topics(name, timeout=ANSWER_S)
