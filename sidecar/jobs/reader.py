"""How topics are read beside the engine: by a consumer that joins no group and commits nothing."""

from typing import Final

from confluent_kafka import KafkaError

ANSWER_S: Final = 10.0
# The client recovers from these by itself and only tells of them.
PASSING: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
    | {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT}
)
READER: Final = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": "false",
    "fetch.wait.max.ms": "20",
    "queued.min.messages": "10000",
    "queued.max.messages.kbytes": "16384",
}


class LogUnavailable(Exception):
    """Kafka doesn't answer."""
