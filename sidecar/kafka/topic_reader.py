"""How topics are read beside the engine: by a consumer that joins no group and commits nothing."""

from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

ANSWER_S: Final = 10.0
READ_BATCH: Final = 500
READ_WAIT_S: Final = 0.2
SILENCE_READS_MAX: Final = 50  # reads in a row without anything: ten seconds
# The client recovers from these by itself and only tells of them.
PASSING: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
    | {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REQUEST_TIMED_OUT}
)


class LogUnavailable(Exception):
    """Kafka doesn't answer."""


def read(consumer: Consumer, lane: tuple[str, int], start: int, end: int) -> Iterator[list[Message]]:
    """Batches of one partition from `start` to before `end`; empty batches are signs of life. Raises LogUnavailable."""
    consumer.assign([TopicPartition(*lane, start)])
    position, silent = start, 0
    try:
        while position < end:
            found = []
            messages = consumer.consume(READ_BATCH, READ_WAIT_S)
            silent = 0 if messages else silent + 1
            if silent > SILENCE_READS_MAX:
                raise LogUnavailable(f"no answer about {lane[0]}/{lane[1]}")
            for message in messages:
                error, offset = message.error(), message.offset() or 0
                if error is None and offset < end:
                    found.append(message)
                if error is None:
                    position = max(position, offset + 1)
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, offset)  # past what was aborted, too
                elif error.code() not in PASSING:
                    raise LogUnavailable(error.str())
            yield found
    except KafkaException as error:
        raise LogUnavailable(error.args[0].str()) from None
    finally:
        consumer.unassign()
