"""Clients as tests want them: quiet, and with the settings that the engine rests on."""

from confluent_kafka import Consumer, Producer

PROPAGATION_MS = 2_000


def producer(bootstrap: str, **settings: object) -> Producer:
    """As the engine's: idempotent, waiting for the broker as long as it takes."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "enable.idempotence": True,
            "message.timeout.ms": 0,
            "topic.metadata.propagation.max.ms": PROPAGATION_MS,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )


def consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    """A consumer that commits only when told."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
