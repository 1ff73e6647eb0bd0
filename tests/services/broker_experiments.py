"""Experiments on the reference broker and on Kafka alike, in raw frames: each gives what a client sees."""

import time
from collections.abc import Callable
from typing import Any, Final

from broker.protocol.api_keys import ApiKey
from broker.records.compression import CompressionType
from broker.records.record_batch import CONTROL, TRANSACTIONAL, assign
from broker.records.records import Producer, Record, build_batch
from tests.services.raw_client import RawClient
from tests.services.waiting import wait_until
from tests.unit.log_world import batch

LEADER_S: Final = 60.0
LONG_MS: Final = 120_000  # longer than the client waits for an answer: who gets one was answered at once
SHORT_MS: Final = 300
TRIES: Final = 3
NOW_MS: Final = int(time.time() * 1000)

Experiment = Callable[[RawClient, str], Any]


def create(client: RawClient, name: str, **config: Any) -> str:
    """A further topic, once its leader knows of it."""
    client.create_topic(name, **config)
    wait_until(lambda: client.fetch(name, 0).error_code == 0, LEADER_S, lambda: f"nobody leads {name}")
    return name


def now(*values: bytes, **about: Any) -> bytearray:
    return batch(*values or (b"value",), timestamp=about.pop("timestamp", NOW_MS), **about)


def produced(client: RawClient, topic: str, records: Any, **more: Any) -> tuple[Any, ...]:
    answer = client.produce(topic, records, **more)
    rows = getattr(answer, "record_errors", ())
    return int(answer.error_code), answer.base_offset, answer.log_start_offset, [one.batch_index for one in rows]


def fetched(client: RawClient, topic: str, offset: int, **more: Any) -> tuple[Any, ...]:
    answer = client.fetch(topic, offset, **more)
    ends = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
    return int(answer.error_code), *ends, len(answer.records or b"")


def waited(what: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether it took the short wait each time, as a busy machine alone doesn't make it, and the outcome."""
    for _ in range(TRIES):
        began_s = time.monotonic()
        outcome = what()
        if time.monotonic() - began_s < SHORT_MS / 1000 - 0.005:
            return False, outcome
    return True, outcome


def batches_that_are_refused(client: RawClient, topic: str) -> Any:
    good = now()
    moved, newer = bytearray(good), bytearray(good)
    assign(moved, 0, 5, 0)
    newer[16] = 3
    old = bytearray(good)
    old[16] = 1
    sent = {
        "nothing": b"",
        "two": bytes(good) * 2,
        "cut": good[:-1],
        "rubbish behind": bytes(good) + b"\0" * 7,
        "changed": bytes(good[:-1]) + b"?",
        "base offset": moved,
        "magic 3": newer,
        "magic 1": old,
        "too large": now(bytes(1_100_000)),
        "in an hour and more": now(timestamp=NOW_MS + 2 * 3_600_000),
        "no key": now(key=None),
    }
    return {name: produced(client, topic, records) for name, records in sent.items()}


def codecs(client: RawClient, topic: str) -> Any:
    return [produced(client, topic, now(b"a" * 500, b"b", codec=codec)) for codec in CompressionType]


def acks_and_places(client: RawClient, topic: str) -> Any:
    return (
        [produced(client, topic, now(), acks=acks) for acks in (1, -1, 2, -2)],
        produced(client, topic, now(), partition=9),
        produced(client, f"{topic}-nowhere", now()),
        client.produce(topic, now(), acks=0),
        produced(client, topic, now()),
    )


def acks_0_with_an_error(client: RawClient, topic: str) -> Any:
    client.produce(f"{topic}-nowhere", now(), acks=0)
    return client.is_closed()


def compacted_topic(client: RawClient, topic: str) -> Any:
    name = create(client, f"{topic}-compacted", cleanup_policy="compact")
    return produced(client, name, now(b"x", key=None)), produced(client, name, now())


def append_time(client: RawClient, topic: str) -> Any:
    answer = client.produce(create(client, f"{topic}-times", message_timestamp_type="LogAppendTime"), now())
    return int(answer.error_code), answer.log_append_time is not None


def times_of_all_ages(client: RawClient, topic: str) -> Any:
    """With no limit to them, and with the usual ones."""
    last = (1 << 63) - 1
    unlimited = create(client, f"{topic}-ages", message_timestamp_after_max_ms=str(last))
    times = (-last - 1, NOW_MS - last - 1, -2, 0, NOW_MS + 7_200_000, last)
    return [[produced(client, name, now(timestamp=one)) for one in times] for name in (unlimited, topic)]


def idempotence(client: RawClient, topic: str) -> Any:
    def send(sequence: int, *, epoch: int = 0, producer_id: int = 4711) -> Any:
        return produced(client, topic, now(producer=Producer(producer_id, epoch, sequence)))

    order = [send(number) for number in range(7)]
    return order, send(6), send(2), send(0), send(9), send(0, epoch=1), send(7), send(3, producer_id=4712)


def control_batches_of_clients(client: RawClient, topic: str) -> Any:
    record = Record(0, NOW_MS, b"\0\0\0\1", b"\0\0\0\0\0\0")
    return produced(client, topic, build_batch([record], producer=Producer(1, 0), attributes=TRANSACTIONAL | CONTROL))


def fetches_that_are_answered_at_once(client: RawClient, topic: str) -> Any:
    size = len(now())
    for _ in range(3):
        client.produce(topic, now())
    at_once = {
        "all": {},
        "first batch only, larger than asked": {"bytes_max": 1},
        "one and a half": {"bytes_max": size * 3 // 2},
        "max bytes": {"max_bytes": size + 1},
        "min bytes": {"min_bytes": 3 * size},
        "min bytes above max bytes": {"min_bytes": 1 << 30, "max_bytes": size},
    }
    offsets = [fetched(client, topic, offset, max_wait_ms=LONG_MS) for offset in (1, 4, -1, 1 << 40)]
    return offsets, {name: fetched(client, topic, 0, max_wait_ms=LONG_MS, **more) for name, more in at_once.items()}


def fetches_that_wait(client: RawClient, topic: str) -> Any:
    size = len(now())
    client.produce(topic, now())
    client.produce(topic, now())
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        "at the end": (2, {}),
        "min bytes": (0, {"min_bytes": 3 * size}),
        "min bytes above the partition's": (0, {"min_bytes": 2 * size, "bytes_max": size}),
        "min bytes 0": (2, {"min_bytes": 0}),
    }
    return {
        name: waited(lambda offset=offset, more=more: fetched(client, topic, offset, max_wait_ms=SHORT_MS, **more))  # type: ignore[misc]
        for name, (offset, more) in cases.items()
    }


def epochs(client: RawClient, topic: str) -> Any:
    client.produce(topic, now())
    given = [
        {"current_leader_epoch": 0},
        {"current_leader_epoch": 7},
        {"last_fetched_epoch": 0},
        {"last_fetched_epoch": 7},
    ]
    ends = []
    for epoch in (-1, 0, 5):
        row = {"topic": topic, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}]}
        [found] = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[row]).topics[0].partitions
        ends.append((int(found.error_code), found.leader_epoch, found.end_offset))
    return [fetched(client, topic, 0, max_wait_ms=LONG_MS, **more) for more in given], ends


def partitions_together(client: RawClient, topic: str) -> Any:
    for partition in (0, 1, 1):
        client.produce(topic, now(b"x" * 300), partition=partition)

    def rows(*wanted: tuple[str, int, int], **more: Any) -> Any:
        topics = [
            {
                "topic": name,
                "partitions": [{"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}],
            }
            for name, number, offset in wanted
        ]
        body = {"max_wait": SHORT_MS, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [], **more}
        answer = client.ask(ApiKey.FETCH, 12, topics=topics, **body)
        return [
            (one.topic == topic, row.partition_index, int(row.error_code), len(row.records or b""))
            for one in answer.responses
            for row in one.partitions
        ]

    return (
        sorted(rows((topic, 0, 0), (topic, 1, 0))),
        sorted(rows((topic, 0, 0), (topic, 1, 0), max_bytes=10)),
        waited(lambda: rows((f"{topic}-nowhere", 0, 0), (topic, 0, 1))),
        waited(lambda: rows((topic, 1, 77), (topic, 0, 1)))[1],
        rows((topic, 0, 0), (topic, 0, 1)),
    )


def sessions(client: RawClient, topic: str) -> Any:
    client.produce(topic, now())
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": []}

    def ask(session_id: int, epoch: int, *, names: bool = False) -> Any:
        topics = [{"topic": topic, "partitions": [wanted]}] if names else []
        return client.ask(ApiKey.FETCH, 12, topics=topics, session_id=session_id, session_epoch=epoch, **body)

    first = ask(0, 0, names=True)
    number = first.session_id
    told = [len(ask(number, epoch).responses) for epoch in (1, 2)]
    return (
        number > 0,
        told,
        int(ask(number, 9).error_code),
        int(ask(number + 1, 1).error_code),
        ask(number, -1).session_id,
    )


def offsets_by_time(client: RawClient, topic: str) -> Any:
    for timestamp in (NOW_MS - 5000, NOW_MS - 1000, NOW_MS - 3000):
        client.produce(topic, now(b"a", b"b", timestamp=timestamp))

    def found(timestamp: int, partition: int = 0) -> Any:
        row = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
        answer = client.ask(
            ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": [row]}]
        )
        [one] = answer.topics[0].partitions
        return int(one.error_code), one.offset, one.timestamp, one.leader_epoch

    times = [NOW_MS - 9000, NOW_MS - 5000, NOW_MS - 4999, NOW_MS - 3000, NOW_MS - 999, NOW_MS]
    return [found(one) for one in (-1, -2, -3)], [found(one) for one in times], found(-1, 9)


def deleted_records(client: RawClient, topic: str) -> Any:
    for _ in range(3):
        client.produce(topic, now(b"a", b"b"))

    def delete(offset: int, name: str = topic) -> Any:
        row = {"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}
        [found] = client.ask(ApiKey.DELETE_RECORDS, 2, topics=[row], timeout=60_000).topics[0].partitions
        return int(found.error_code), found.low_watermark

    create(client, f"{topic}-kept", cleanup_policy="compact")
    asked = [delete(3), delete(1), delete(9), delete(-2), delete(0, f"{topic}-nowhere"), delete(0, f"{topic}-kept")]
    return asked, fetched(client, topic, 2), fetched(client, topic, 3)[:4], delete(-1), fetched(client, topic, 6)


def topics_that_cannot_be(client: RawClient, topic: str) -> Any:
    def code(**more: Any) -> int:
        body = {"name": f"{topic}-no", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        return int(client.ask(ApiKey.CREATE_TOPICS, 7, topics=[{**body, **more}], timeout=60_000).topics[0].error_code)

    def config(name: str, value: str | None) -> int:
        return code(configs=[{"name": name, "value": value}])

    row = {"partition_index": 0, "broker_ids": [1, 1]}
    return (
        [code(name=name) for name in (topic, "", ".", "a b", "x" * 250)],
        [code(num_partitions=count) for count in (0, -2)],
        [code(replication_factor=count) for count in (0, 9)],
        code(num_partitions=-1, replication_factor=-1, assignments=[row]),
        code(assignments=[row]),
        [
            config("no.such", "1"),
            config("retention.ms", "x"),
            config("retention.ms", "-2"),
            config("retention.ms", None),
        ],
        [config("segment.bytes", "1000"), config("cleanup.policy", "burn"), config("min.insync.replicas", "0")],
    )


def topics_change_and_go(client: RawClient, topic: str) -> Any:
    def grow(name: str, count: int) -> int:
        wanted = [{"name": name, "count": count, "assignments": None}]
        answer = client.ask(ApiKey.CREATE_PARTITIONS, 3, topics=wanted, timeout=60_000, validate_only=False)
        return int(answer.results[0].error_code)

    def configure(of: str, **entry: Any) -> int:
        change = {"name": "retention.ms", "config_operation": 0, "value": "1000", **entry}
        resource = {"resource_type": 2, "resource_name": of, "configs": [change]}
        answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        return int(answer.responses[0].error_code)

    def delete(name: str) -> int:
        answer = client.ask(ApiKey.DELETE_TOPICS, 5, topic_names=[name], timeout=60_000)
        return int(answer.responses[0].error_code)

    nowhere = f"{topic}-nowhere"
    return (
        [grow(topic, 4), grow(topic, 4), grow(topic, 1), grow(topic, 0), grow(nowhere, 2)],
        [configure(topic), configure(nowhere), configure(topic, value="x"), configure(topic, config_operation=2)],
        [configure(topic, name="no.such"), configure(topic, value=None)],
        [delete(topic), delete(topic), delete(nowhere)],
    )


def quorum(client: RawClient, topic: str) -> Any:
    known = "__cluster_metadata"

    def ask(*topics: tuple[str, list[int]], version: int = 2) -> Any:
        rows = [
            {"topic_name": name, "partitions": [{"partition_index": one} for one in numbers]}
            for name, numbers in topics
        ]
        return client.ask(ApiKey.DESCRIBE_QUORUM, version, topics=rows)

    def codes(answer: Any) -> Any:
        rows = [
            (one.topic_name == topic, row.partition_index, int(row.error_code), row.error_message)
            for one in answer.topics
            for row in one.partitions
        ]
        return int(answer.error_code), answer.error_message, len(answer.topics), rows, len(answer.nodes)

    def told(answer: Any) -> Any:
        """Offsets are others on each broker: how they stand to each other isn't."""
        [row] = answer.topics[0].partitions
        voters = [
            (
                one.replica_id,
                getattr(one, "replica_directory_id", None),
                one.log_end_offset == row.high_watermark,
                getattr(one, "last_fetch_timestamp", 0) >= NOW_MS,
                getattr(one, "last_caught_up_timestamp", 0) >= NOW_MS,
            )
            for one in row.current_voters
        ]
        nodes = [(one.node_id, [its.name for its in one.listeners]) for one in getattr(answer, "nodes", ())]
        return row.leader_id, row.leader_epoch > 0, row.high_watermark > 0, voters, row.observers, nodes

    refused = [((known, [1]),), ((known, [0, 1]),), ((known, [0]), (topic, [0])), ((known, []),), ()]
    return [told(ask((known, [0]), version=version)) for version in range(3)], [codes(ask(*one)) for one in refused]


EXPERIMENTS: Final[dict[str, Experiment]] = {
    one.__name__: one
    for one in (
        batches_that_are_refused,
        codecs,
        acks_and_places,
        acks_0_with_an_error,
        compacted_topic,
        append_time,
        times_of_all_ages,
        idempotence,
        control_batches_of_clients,
        fetches_that_are_answered_at_once,
        fetches_that_wait,
        epochs,
        partitions_together,
        sessions,
        offsets_by_time,
        deleted_records,
        topics_that_cannot_be,
        topics_change_and_go,
        quorum,
    )
}
