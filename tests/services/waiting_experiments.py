"""Experiments on the reference broker and on Kafka alike with fetches that wait: what ends the wait, what doesn't,
and with what. As `broker_experiments`: whoever gets an answer within the client's patience was answered by an event,
since the fetch itself would have waited longer.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from broker.protocol.api_keys import ApiKey
from purgatory.errors import Errors
from tests.services.broker_experiments import LEADER_S, LONG_MS, SHORT_MS, Experiment, create, fetched, now, waited
from tests.services.raw_client import RawClient
from tests.services.raw_transaction import Transaction, settled
from tests.services.waiting import wait_until

PARKED_S: Final = 0.1  # in which a fetch is certainly waiting, and nothing may come
CROWD: Final = 300
TIMES_MS: Final = (1, 5, 19, 20, 21, 399, 400, 401)  # around the borders of the wheel's levels
EARLY_MS: Final = 1  # Kafka's wheel rounds down


class One:
    """A single broker, as transactions want to see it."""

    def __init__(self, client: RawClient) -> None:
        self.addresses = [client.address]

    def ask(self, broker_id: int, api_key: ApiKey, version: int, **body: Any) -> Any:
        with RawClient(self.addresses[broker_id - 1]) as client:
            return client.ask(api_key, version, **body)


class Parked:
    """A fetch that waits for longer than anybody does, at a connection of its own."""

    def __init__(self, client: RawClient, topic: str, offset: int, *, version: int = 12, **more: Any) -> None:
        self.client = client
        self._version = version
        more = {"max_wait_ms": LONG_MS, **more}
        client.send(ApiKey.FETCH, version, **client.fetch_body(topic, offset, version=version, **more))

    @property
    def waits(self) -> bool:
        return self.client.is_silent(PARKED_S)

    def answer(self) -> Any:
        """The row of its partition."""
        [topic] = self.client.receive(ApiKey.FETCH, self._version).responses
        return topic.partitions[0]

    def outcome(self) -> tuple[int, int, int, int]:
        row = self.answer()
        return int(row.error_code), row.high_watermark, row.last_stable_offset, len(row.records or b"")


@contextmanager
def parked(client: RawClient, topic: str, offset: int, **more: Any) -> Iterator[Parked]:
    with RawClient(client.address) as other:
        yield Parked(other, topic, offset, **more)


def wait_for_coordinator(client: RawClient, name: str, kind: int) -> None:
    """Of a group (0) or of transactions (1); the first who asks makes the topic in which they are kept."""

    def is_found() -> bool:
        answer = client.ask(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[name])
        return bool(answer.coordinators[0].error_code == Errors.NONE)

    wait_until(is_found, LEADER_S)


def waits_without_time(client: RawClient, topic: str) -> Any:
    return [fetched(client, topic, 0, max_wait_ms=wait, min_bytes=bytes_) for wait in (0, -1) for bytes_ in (0, 1)]


def what_comes_ends_a_wait(client: RawClient, topic: str) -> Any:
    """One batch where any will do; the third where three are wanted."""
    with parked(client, topic, 0) as one:
        waits = one.waits
        client.produce(topic, now())
        first = waits, one.outcome()
    with parked(client, topic, 1, min_bytes=3 * len(now())) as several:
        waited_for = []
        for _ in range(3):
            waited_for.append(several.waits)
            client.produce(topic, now())
        return first, waited_for, several.outcome()


def nothing_to_wait_for(client: RawClient, topic: str) -> Any:
    """Only unknown topics, and no partitions at all, in a session and without one."""
    body = {"max_wait": LONG_MS, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": []}
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    nowhere = [{"topic": f"{topic}-nowhere", "partitions": partitions}]
    asked = [client.ask(ApiKey.FETCH, 12, topics=topics, **body) for topics in (nowhere, [])]
    codes = [[int(row.error_code) for one in answer.responses for row in one.partitions] for answer in asked]
    empty = client.ask(ApiKey.FETCH, 12, topics=[], session_id=0, session_epoch=0, **body)
    return codes, int(empty.error_code), len(empty.responses)


def nothing_new_in_a_session(client: RawClient, topic: str) -> Any:
    """A fetch of a session without news waits for all of its time; its answer names no topic."""
    body = {"min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": []}
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    topics = [{"topic": topic, "partitions": partitions}]
    first = client.ask(ApiKey.FETCH, 12, topics=topics, session_id=0, session_epoch=0, max_wait=0, **body)
    about: dict[str, Any] = {"session_id": first.session_id, "max_wait": SHORT_MS, **body}
    epochs = iter(range(1, 9))

    def ask() -> Any:
        answer = client.ask(ApiKey.FETCH, 12, topics=[], session_epoch=next(epochs), **about)
        return int(answer.error_code), len(answer.responses)

    return waited(ask)


def a_topic_goes_under_a_wait(client: RawClient, topic: str) -> Any:
    def outcome(version: int) -> Any:
        name = create(client, f"{topic}-goes-{version}")
        asked = client.ask(ApiKey.METADATA, 12, topics=[{"topic_id": None, "name": name}]).topics[0]
        place = str(asked.topic_id) if version >= 13 else name
        with parked(client, place, 0, version=version) as one:
            waits = one.waits
            client.ask(ApiKey.DELETE_TOPICS, 5, topic_names=[name], timeout=60_000)
            return waits, int(one.answer().error_code)

    return [outcome(version) for version in (12, 13)]


def a_roll_ends_a_wait(client: RawClient, topic: str) -> Any:
    """However much is wanted: what was waited for is in an older segment then."""
    name = create(client, f"{topic}-rolls", segment_bytes=str(1 << 20))
    for _ in range(3):
        client.produce(name, now(bytes(300_000)))
    with parked(client, name, 3, min_bytes=50_000_000) as one:
        client.produce(name, now(bytes(10_000)))
        waits = one.waits
        client.produce(name, now(bytes(300_000)))
        return waits, one.outcome()


def deletion_ends_no_wait(client: RawClient, topic: str) -> Any:
    """Records go below a fetch that waits for more of them: it learns that when its time is over."""
    client.produce(topic, now())
    client.produce(topic, now())
    with parked(client, topic, 1, min_bytes=50_000_000, max_wait_ms=3_000) as one:
        waits = one.waits
        row = {"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}
        client.ask(ApiKey.DELETE_RECORDS, 2, topics=[row], timeout=60_000)
        return waits, one.waits, one.outcome()


def many_wait_for_one(client: RawClient, topic: str) -> Any:
    with ExitStack() as stack:
        crowd = [stack.enter_context(parked(client, topic, 0)) for _ in range(CROWD)]
        waiting = [one.client.is_silent(0) for one in crowd]
        waits = crowd[-1].waits
        client.produce(topic, now())
        return all(waiting), waits, {one.outcome() for one in crowd}


def nobody_is_early(client: RawClient, topic: str) -> Any:
    def took_ms(wait_ms: int) -> float:
        began_s = time.perf_counter()
        client.fetch(topic, 0, max_wait_ms=wait_ms)
        return (time.perf_counter() - began_s) * 1000

    return [all(took_ms(one) >= one - EARLY_MS for _ in range(2)) for one in TIMES_MS]


def open_transactions(client: RawClient, topic: str) -> Any:
    """Readers of committed records wait at the last stable offset, and get all when it moves on; what was aborted is
    named. Between last stable offset and end there is nothing for them, and nothing to wait for."""
    wait_for_coordinator(client, topic, 1)
    transaction = Transaction(One(client), topic)
    begun = transaction.begin(1)
    found = []
    offset = 0
    for committed in (True, False):
        codes = [settled(lambda: transaction.add(1, [topic])[0])]
        codes += [transaction.produce(1, topic), transaction.produce(1, topic)]
        waiting = waited(lambda at=offset: fetched(client, topic, at, isolation_level=1, max_wait_ms=SHORT_MS))  # type: ignore[misc]
        others = [
            fetched(client, topic, offset + 1, isolation_level=1, max_wait_ms=LONG_MS),
            fetched(client, topic, offset, max_wait_ms=LONG_MS),
        ]
        with parked(client, topic, offset, isolation_level=1) as one:
            waits = one.waits
            ended = settled(lambda committed=committed: transaction.end(1, committed=committed))  # type: ignore[misc]
            row = one.answer()
        aborted = [
            (it.producer_id == transaction.producer_id, it.first_offset) for it in row.aborted_transactions or ()
        ]
        told = int(row.error_code), row.high_watermark, row.last_stable_offset, len(row.records)
        found.append((codes, waiting, others, waits, ended, told, aborted))
        offset = row.high_watermark
    return begun, found


def what_is_the_brokers(client: RawClient, topic: str) -> Any:
    """Internal topics are its own; one replica is in sync however many are wanted."""
    alone = create(client, f"{topic}-alone", min_insync_replicas="2")
    wait_for_coordinator(client, topic, 0)
    row = {"name": "__consumer_offsets", "partitions": [{"partition_index": 0, "offset": 0}]}
    [deleted] = client.ask(ApiKey.DELETE_RECORDS, 2, topics=[row], timeout=60_000).topics[0].partitions
    written = client.produce("__consumer_offsets", now())
    acked = client.produce(alone, now())
    return int(deleted.error_code), int(written.error_code), int(acked.error_code), fetched(client, alone, 0)


EXPERIMENTS: Final[dict[str, Experiment]] = {
    one.__name__: one
    for one in (
        waits_without_time,
        what_comes_ends_a_wait,
        nothing_to_wait_for,
        nothing_new_in_a_session,
        a_topic_goes_under_a_wait,
        a_roll_ends_a_wait,
        deletion_ends_no_wait,
        many_wait_for_one,
        nobody_is_early,
        open_transactions,
        what_is_the_brokers,
    )
}
