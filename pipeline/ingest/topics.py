"""Topics as the jobs see them: the columns of a record, where topics begin and end, what retention has taken."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from pipeline.errors import PipelineError

ANSWER_S: Final = 30.0
NO_ID: Final = "A" * 22  # as brokers say it that have none
RECORDS: Final = (
    "topic string, partition int, offset bigint, timestamp_ms bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
UNREADABLE: Final = "\ufffd"
"""In header names of `RECORDS`, in place of what is not UTF-8. Read in Python, such a record has this one header."""

Offsets = dict[str, dict[str, int]]
"""Where a stream stands: by topic and partition (as text) the next offset to read."""


class LostRange(NamedTuple):
    """Source offsets from `start` on, up to and without `end`, that retention took before they were read."""

    topic: str
    partition: int
    start: int
    end: int


def lost_ranges(client: Mapping[str, str], read: Offsets) -> list[LostRange]:
    """Offsets that are missing between where a stream stands and where its topics begin: of a partition that was added
    since then, all before its beginning. Raises PipelineError."""
    found = []
    for topic, places in read.items():
        for partition, start in bounds(client, topic)[0].items():
            offset = places.get(partition, 0)
            if start > offset:
                found.append(LostRange(topic, int(partition), offset, start))
    return found


def bounds(
    client: Mapping[str, str], topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> tuple[dict[str, int], dict[str, int]]:
    """By partition the first offset, and the end: of what is committed, or of all there is. Raises PipelineError."""
    admin = _admin(client)
    try:
        known = admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
        if known.error is not None:
            raise PipelineError(f"topic {topic}: {known.error.str()}")
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        partitions = list(known.partitions)
        asked = ((spec, isolation) for spec in (earliest, latest))
        starts, ends = (_offsets(admin, topic, partitions, *one) for one in asked)
        return starts, ends
    except KafkaException as error:
        raise PipelineError(f"Kafka doesn't answer about topic {topic}: {error.args[0].str()}") from error


def exists(client: Mapping[str, str], topic: str) -> bool:
    """Whether there is a topic of this name. Raises PipelineError when nobody can tell."""
    admin = _admin(client)
    try:
        error = admin.list_topics(topic, timeout=ANSWER_S).topics[topic].error
    except KafkaException as failed:
        raise PipelineError(f"Kafka doesn't answer about topic {topic}: {failed.args[0].str()}") from failed
    if error is not None and error.code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        raise PipelineError(f"topic {topic}: {error.str()}")
    return error is None


def topic_id(client: Mapping[str, str], topic: str) -> str:
    """Kafka's id of the topic: another when it was deleted and created again. Empty where the brokers have none (before
    2.8). Raises PipelineError.
    """
    admin = _admin(client)
    try:
        answers = admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_S)
        found = str(answers[topic].result(ANSWER_S + 1).topic_id)
    except KafkaException as error:
        raise PipelineError(f"Kafka doesn't answer about topic {topic}: {error.args[0].str()}") from error
    return "" if found == NO_ID else found


def _admin(client: Mapping[str, str]) -> AdminClient:
    """A client whose questions about topics create none."""
    return AdminClient({**client, "allow.auto.create.topics": "false"})


def _offsets(
    admin: AdminClient, topic: str, partitions: list[int], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[str, int]:
    wanted = {TopicPartition(topic, partition): spec for partition in partitions}
    answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=ANSWER_S)
    return {str(place.partition): answer.result(ANSWER_S).offset for place, answer in answers.items()}
