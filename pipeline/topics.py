"""What topics are to the jobs: the columns of a record, where topics begin and end, what retention has taken."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from pipeline.errors import PipelineError

ANSWER_S: Final = 30.0
RECORDS: Final = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)

Offsets = dict[str, dict[str, int]]
"""Where a stream stands: by topic and partition (as text) the next offset to read."""


class LostRange(NamedTuple):
    """Source offsets from `start` on, up to and without `end`, that retention took before they were read."""

    topic: str
    partition: int
    start: int
    end: int


def lost_ranges(client: Mapping[str, str], read: Offsets) -> list[LostRange]:
    """What is missing between where a stream stands and where its topics begin. Raises PipelineError."""
    found = []
    for topic, places in read.items():
        starts = bounds(client, topic)[0]
        for partition, offset in places.items():
            start = starts.get(partition, offset)
            if start > offset:
                found.append(LostRange(topic, int(partition), offset, start))
    return found


def bounds(client: Mapping[str, str], topic: str) -> tuple[dict[str, int], dict[str, int]]:
    """By partition the first offset, and the end of what is committed. Raises PipelineError."""
    admin = AdminClient(dict(client))
    try:
        known = admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
        if known.error is not None:
            raise PipelineError(f"topic {topic}: {known.error.str()}")
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        partitions = list(known.partitions)
        return _offsets(admin, topic, partitions, earliest), _offsets(admin, topic, partitions, latest)
    except KafkaException as error:
        raise PipelineError(f"Kafka doesn't answer about topic {topic}: {error.args[0].str()}") from error


def _offsets(admin: AdminClient, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[str, int]:
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    answers = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S)
    return {str(place.partition): answer.result(ANSWER_S).offset for place, answer in answers.items()}
