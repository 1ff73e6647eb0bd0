"""The policy store, several on one topic as replicas: on the client's mock cluster and on real Kafka."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from policies.errors import (
    FileManaged,
    PolicyConflict,
    PolicyStoreUnavailable,
    PolicyTooLarge,
    VersionUnknown,
)
from policies.kafka_clients import Consumer, living
from policies.model import Removed, Versioned
from policies.table import PolicyTable
from policies.topic.log import SCHEMA
from policies.topic.store import PolicyStore
from tests.contract.policies.policy_replicas import SEEN_WITHIN_S, TOPIC, Place, policy, replica, seen, write
from tests.services.kafka import Kafka

pytestmark = pytest.mark.slow


@pytest.fixture(params=["mock", pytest.param("real", marks=pytest.mark.integration)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A policy topic of its own: empty on the mock cluster (it cannot create one), missing on real Kafka."""
    if request.param == "real":
        kafka: Kafka = request.getfixturevalue("kafka")
        yield Place(kafka.bootstrap, f"policies-{uuid4().hex}")
        return
    # The mock cluster lives as long as the producer that owns it.
    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(owner.list_topics(TOPIC, timeout=60).brokers.values()))
    yield Place(f"{broker.host}:{broker.port}", TOPIC)
    owner.flush(0)


def test_an_empty_topic_is_an_empty_table(place: Place) -> None:
    with replica(place) as store:
        assert (store.table.version, dict(store.table.policies)) == (0, {})
        assert (store.healthy, store.reason) == (True, "")


def test_a_written_policy_is_seen_by_every_replica_and_by_later_ones(place: Place) -> None:
    with replica(place) as first, replica(place) as second:
        written = first.put(policy("a"), 0, "me")
        assert (written.version, written.author, written.managed_by) == (1, "me", "api")
        assert written.time_ms > 0
        assert first.table.policies["a"] == written
        assert seen(second, lambda table: "a" in table.policies)
        with replica(place) as late:
            assert late.table.policies == {"a": written}
            assert late.table.version == first.table.version == 1


def test_another_client_reads_on_where_one_was_lost(place: Place) -> None:
    with replica(place) as first, replica(place) as second:
        first.put(policy("a"), 0, "me")
        for client in living():
            if isinstance(client, Consumer):
                client.lose()
        first.put(policy("b"), 0, "me")
        assert seen(second, lambda table: table.policies.keys() == {"a", "b"})


def test_only_the_version_expected_is_replaced(place: Place) -> None:
    with replica(place) as store:
        store.put(policy("a"), 0, "me")
        with pytest.raises(PolicyConflict) as caught:
            store.put(policy("a", 2), 0, "me")
        assert (caught.value.expected_version, caught.value.current_version) == (0, 1)
        with pytest.raises(PolicyConflict):
            store.put(policy("a", 2), 5, "me")
        assert store.put(policy("a", 2), 1, "me").version == 2
        with pytest.raises(PolicyConflict):
            store.delete("a", 1, "me")
        with pytest.raises(PolicyConflict):
            store.delete("b", 0, "me")
        with pytest.raises(PolicyConflict):
            store.delete("b", 1, "me")


def test_of_writers_that_race_exactly_one_wins(place: Place) -> None:
    with replica(place) as first, replica(place) as second, ThreadPoolExecutor(8) as pool:

        def attempt(turn: int) -> int:
            try:
                return (first, second)[turn % 2].put(policy("a", turn), 0, f"writer {turn}").version
            except PolicyConflict as conflict:
                return -conflict.current_version

        assert sorted(pool.map(attempt, range(16))) == [-1] * 15 + [1]
        assert seen(second, lambda table: "a" in table.policies)
        assert first.table.policies == second.table.policies


def test_versions_and_past_tables_and_rollback(place: Place) -> None:
    with replica(place) as store:
        store.put(policy("a", 1), 0, "me")
        store.put(policy("a", 2), 1, "you")
        removed = store.delete("a", 2, "me")
        assert isinstance(removed, Removed)
        assert "a" not in store.table.policies
        first, second, third = store.versions("a")
        assert isinstance(first, Versioned)
        assert isinstance(second, Versioned)
        assert third == removed
        back = store.put(first.policy, 0, "me")
        assert (back.version, back.policy) == (4, policy("a", 1))
        assert store.versions("never") == ()
        assert store.table_at(0).policies == {}
        assert store.table_at(1).policies == {"a": first}
        assert store.table_at(2).policies == {"a": second}
        assert store.table_at(3).policies == {}
        assert store.table_at(store.table.version) is store.table
        with pytest.raises(VersionUnknown, match="read up to 4"):
            store.table_at(5, timeout_s=0.01)


def test_a_table_that_is_on_its_way_is_waited_for(place: Place) -> None:
    with replica(place) as first, replica(place) as second, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.table_at, 1, SEEN_WITHIN_S)
        written = first.put(policy("a"), 0, "me")
        assert waiting.result(SEEN_WITHIN_S).policies == {"a": written}


def test_a_file_is_published_and_only_a_file_changes_it(place: Place) -> None:
    with replica(place) as store:
        store.put(policy("rest"), 0, "me")
        store.put(policy("both"), 0, "me")
        store.publish_file([policy("a"), policy("b"), policy("both", 5)])
        managed = {name: found.managed_by for name, found in store.table.policies.items()}
        assert managed == {"rest": "api", "both": "file", "a": "file", "b": "file"}
        assert store.table.policies["both"].version == 2
        store.publish_file([policy("a"), policy("b"), policy("both", 5), policy("rest")])
        assert store.table.policies["rest"].managed_by == "file"  # taken over, although nothing else differs
        with pytest.raises(FileManaged):
            store.put(policy("a", 2), 1, "me")
        with pytest.raises(FileManaged):
            store.delete("a", 1, "me")
        before = store.table
        same = [policy("rest"), policy("both", 5), policy("b"), policy("a")]
        assert store.publish_file(same) is before  # nothing to write
        store.put(policy("own"), 0, "me")
        store.publish_file([policy("a", 7)])
        assert {name: found.version for name, found in store.table.policies.items()} == {"own": 1, "a": 2}


def test_replicas_that_publish_the_same_file_at_once_agree(place: Place) -> None:
    names = [f"p{number}" for number in range(20)]
    with replica(place) as first, replica(place) as second, ThreadPoolExecutor(2) as pool:
        file = [policy(name) for name in names]
        tables = list(pool.map(lambda store: store.publish_file(file), (first, second)))
        for table in tables:
            assert {found.policy.name: found.version for found in table.policies.values()} == dict.fromkeys(names, 1)


def test_garbage_is_passed_over(place: Place) -> None:
    with replica(place) as store:
        assert store.table.version == 0  # and the topic is there
    write(place, b"\xff", None, b"{}", b"[]", b'{"schema":1,"name":"a"}')
    with replica(place) as store:
        assert store.healthy
        write(place, b"more")
        assert store.put(policy("a"), 0, "me").version == 1
        assert store.table.version == 7


def test_a_newer_schema_stops_the_reader_with_the_last_good_table(place: Place) -> None:
    with replica(place) as store:
        store.put(policy("a"), 0, "me")
        write(place, json.dumps({"schema": SCHEMA + 1, "name": "b"}).encode())
        with pytest.raises(PolicyStoreUnavailable):
            store.put(policy("c"), 0, "me")
        assert not store.healthy
        assert f"schema {SCHEMA + 1}" in store.reason
        assert set(store.table.policies) == {"a"}
        with replica(place) as late:
            assert not late.healthy
            assert set(late.table.policies) == {"a"}


def test_a_policy_too_large_for_a_record_is_refused_before_it_is_written(place: Place) -> None:
    large = policy("a").model_copy(
        update={"match": policy("a").match.model_copy(update={"topics": ("t" * 249,) * 5_000})}
    )
    with replica(place) as store:
        with pytest.raises(PolicyTooLarge):
            store.put(large, 0, "me")
        assert store.put(policy("a"), 0, "me").version == 1


def test_a_callback_that_fails_shows_and_writes_end(place: Place) -> None:
    def fail(table: PolicyTable) -> None:
        raise RuntimeError("callback")

    with replica(place) as store:
        store.on_change(fail)
        with pytest.raises(PolicyStoreUnavailable, match="may still take effect"):
            store.put(policy("a"), 0, "me")
        assert "callback" in store.reason


def test_start_and_stop_twice_are_harmless_and_a_stopped_store_does_not_write(place: Place) -> None:
    with replica(place) as store:
        store.start()
        store.put(policy("a"), 0, "me")
        store.stop()
        store.stop()
        assert store.reason == "stopped"
        assert set(store.table.policies) == {"a"}
        with pytest.raises(PolicyStoreUnavailable, match="stopped"):
            store.put(policy("b"), 0, "me")


def test_brokers_that_do_not_answer_end_the_start_in_time() -> None:
    store = PolicyStore({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}, TOPIC)
    with pytest.raises(PolicyStoreUnavailable, match="no answer from Kafka"):
        store.start(timeout_s=0.1)
    assert not store.healthy
    with pytest.raises(PolicyStoreUnavailable, match="not started"):
        store.put(policy("a"), 0, "me")
