"""Transactions: every transition, every error, and a kill between any two turns of the event loop."""

from dataclasses import replace
from struct import pack

import pytest

from broker.protocol.primitive_types import UnreadableRecord
from broker.transactions.admin import TransactionFilter, describe_transaction, list_transactions
from broker.transactions.coordinator import Begun, ProducerClaim
from broker.transactions.records import decode_transaction, decode_transactional_id, encode_transaction
from broker.transactions.transaction import EPOCH_MAX, TransactionState, TransactionValues
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from tests.unit.broker.transactions.transaction_world import ORDERS, PAYMENTS, TransactionWorld

E = Errors
S = TransactionState


def test_an_idempotent_producer_gets_an_id_that_nobody_has():
    world = TransactionWorld()
    assert [world.begin(None) for _ in range(3)] == [Begun(E.NONE, number, 0) for number in range(3)]
    world.restart()
    assert world.begin(None) == Begun(E.NONE, 1000, 0)  # from the next block


@pytest.mark.parametrize(
    ("transactional_id", "timeout_ms", "expected"),
    [
        ("", 1000, E.INVALID_REQUEST),
        ("x" * 8_001, 1000, E.INVALID_REQUEST),
        ("id", 0, E.INVALID_TRANSACTION_TIMEOUT),
        ("id", -1, E.INVALID_TRANSACTION_TIMEOUT),
        ("id", 900_001, E.INVALID_TRANSACTION_TIMEOUT),
        ("id", 900_000, E.NONE),
    ],
)
def test_what_a_producer_may_ask_for(transactional_id, timeout_ms, expected):
    begun = TransactionWorld().begin(transactional_id, timeout_ms)
    assert begun is not None
    assert begun.error is expected


@pytest.mark.parametrize(("is_commit", "end"), [(True, "commit"), (False, "abort")])
def test_a_transaction_ends_in_all_its_partitions(is_commit, end):
    world = TransactionWorld()
    claim = world.producer()
    assert world.state() is S.EMPTY
    assert world.add(claim, ORDERS) is E.NONE
    assert world.state() is S.ONGOING
    assert world.add(claim, PAYMENTS, ORDERS) is E.NONE
    assert world.end(claim, is_commit=is_commit) is E.NONE
    assert world.state() is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
    assert world.markers(ORDERS) == world.markers(PAYMENTS) == [(claim.producer_id, 0, end)]
    assert world.end(claim, is_commit=is_commit) is E.NONE  # its answer was lost
    assert world.end(claim, is_commit=not is_commit) is E.INVALID_TXN_STATE
    assert world.add(claim, ORDERS) is E.NONE  # the next one
    assert world.store.transactions["id"].now.partitions == {ORDERS}


def test_a_producer_that_begins_again_gets_the_next_epoch():
    world = TransactionWorld()
    former = world.producer()
    latter = world.producer()
    assert latter == former._replace(producer_epoch=1)
    assert (world.add(former), world.end(former)) == (E.PRODUCER_FENCED, E.PRODUCER_FENCED)
    assert world.end(latter) is E.INVALID_TXN_STATE  # there is nothing to end


def test_an_open_transaction_is_aborted_for_the_next_producer():
    world = TransactionWorld()
    former = world.producer()
    world.add(former, ORDERS, PAYMENTS)
    assert world.begin() == Begun(E.CONCURRENT_TRANSACTIONS)
    assert world.state() is S.COMPLETE_ABORT
    assert world.markers() == [(former.producer_id, 1, "abort")]  # of an epoch that nobody is given
    latter = world.producer()
    assert latter.producer_epoch == 2
    assert world.end(former) is E.PRODUCER_FENCED


def test_who_goes_on_says_what_it_had():
    world = TransactionWorld()
    claim = world.producer()
    had = (claim.producer_id, 0)
    assert world.begin(expected=had) == Begun(E.NONE, claim.producer_id, 1)
    assert world.begin(expected=had) == Begun(E.NONE, claim.producer_id, 1)  # its answer was lost
    assert world.begin(expected=(claim.producer_id, 1)) == Begun(E.NONE, claim.producer_id, 2)
    assert world.begin(expected=had) == Begun(E.PRODUCER_FENCED)
    assert world.begin(expected=(77, 2)) == Begun(E.PRODUCER_FENCED)


def test_when_the_epochs_are_used_up_there_is_another_id():
    world = TransactionWorld()
    claim = world.producer()
    transaction = world.store.transactions["id"]
    transaction.now = replace(transaction.now, producer_epoch=EPOCH_MAX - 2)
    assert world.begin() == Begun(E.NONE, claim.producer_id, EPOCH_MAX - 1)
    last = claim._replace(producer_epoch=EPOCH_MAX - 1)
    assert world.add(last) is E.NONE
    assert world.begin() == Begun(E.CONCURRENT_TRANSACTIONS)
    assert world.markers() == [(claim.producer_id, EPOCH_MAX, "abort")]  # the last is kept for this
    begun = world.begin(expected=(claim.producer_id, EPOCH_MAX - 1))
    assert begun == Begun(E.NONE, claim.producer_id + 1, 0)
    assert world.end(last) is E.INVALID_PRODUCER_ID_MAPPING


def test_who_has_not_heard_of_its_new_id_is_told_again():
    world = TransactionWorld()
    claim = world.producer()
    transaction = world.store.transactions["id"]
    transaction.now = replace(transaction.now, producer_epoch=EPOCH_MAX - 1)
    for _ in range(3):
        assert world.begin(expected=(claim.producer_id, EPOCH_MAX - 1)) == Begun(E.NONE, claim.producer_id + 1, 0)
    assert world.begin(expected=(claim.producer_id, 0)) == Begun(E.PRODUCER_FENCED)  # another one of long ago


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (ProducerClaim("", 0, 0), E.INVALID_REQUEST),
        (ProducerClaim("nobody", 0, 0), E.INVALID_PRODUCER_ID_MAPPING),
        (ProducerClaim("id", 5, 0), E.INVALID_PRODUCER_ID_MAPPING),
        (ProducerClaim("id", 0, 1), E.PRODUCER_FENCED),
    ],
)
def test_who_may_not(claim, expected):
    world = TransactionWorld()
    world.add(world.producer())
    assert [world.add(claim), world.end(claim), world.coordinator.verify(claim, ORDERS)] == [expected] * 3
    assert world.state() is S.ONGOING


def test_while_a_change_is_on_its_way_there_is_no_other():
    world = TransactionWorld()
    claim = world.producer()
    world.log.is_held = True
    assert world.add(claim) is None
    assert world.add(claim, PAYMENTS) is E.CONCURRENT_TRANSACTIONS
    assert world.end(claim) is E.CONCURRENT_TRANSACTIONS
    assert world.begin() == Begun(E.CONCURRENT_TRANSACTIONS)
    assert world.coordinator.verify(claim, ORDERS) is E.INVALID_TXN_STATE
    world.log.let_go()
    world.pass_time(0)
    assert world.state() is S.ONGOING


@pytest.mark.parametrize("is_commit", [True, False])
def test_while_markers_are_written_there_is_no_other(is_commit):
    world = TransactionWorld()
    claim = world.producer()
    world.add(claim)
    world.marker_errors = [E.NOT_ENOUGH_REPLICAS] * 3
    assert world.end(claim, is_commit=is_commit) is E.NONE  # it is decided
    assert world.state() is (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
    assert world.add(claim) is E.CONCURRENT_TRANSACTIONS
    assert world.coordinator.verify(claim, ORDERS) is E.CONCURRENT_TRANSACTIONS
    assert world.begin() == Begun(E.CONCURRENT_TRANSACTIONS)
    assert world.end(claim, is_commit=is_commit) is E.CONCURRENT_TRANSACTIONS
    assert world.end(claim, is_commit=not is_commit) is E.INVALID_TXN_STATE
    world.pass_time(350)
    assert world.state() is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
    assert len(world.markers()) == 1


def test_a_partition_that_is_gone_has_nothing_to_end():
    world = TransactionWorld()
    claim = world.producer()
    world.add(claim, ORDERS, PAYMENTS)
    world.gone = {PAYMENTS}
    world.end(claim)
    assert world.state() is S.COMPLETE_COMMIT


def test_a_later_epoch_in_a_partition_stops_the_markers():
    world = TransactionWorld()
    claim = world.producer()
    world.add(claim)
    world.marker_errors = [E.TRANSACTION_COORDINATOR_FENCED]
    world.end(claim)
    world.pass_time(10_000)
    assert (world.state(), world.markers()) == (S.PREPARE_COMMIT, [])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_is_not_in_the_log_has_not_happened(error: Errors, expected: Errors) -> None:
    world = TransactionWorld()
    claim = world.producer()
    world.log.error = error
    assert [world.add(claim)] == [expected]
    assert world.begin() == Begun(expected)
    assert world.state() is S.EMPTY
    world.log.error = E.NONE
    assert [world.add(claim)] == [E.NONE]
    world.log.error = error
    assert [world.end(claim)] == [expected]
    assert world.state() is S.ONGOING
    world.log.error = E.NONE
    assert [world.end(claim)] == [E.NONE]


def test_an_abort_that_failed_does_not_use_up_another_epoch():
    world = TransactionWorld()
    world.add(world.producer())
    world.log.error = E.NOT_ENOUGH_REPLICAS
    for _ in range(3):
        assert world.begin() == Begun(E.COORDINATOR_NOT_AVAILABLE)
    world.log.error = E.NONE
    assert world.begin() == Begun(E.CONCURRENT_TRANSACTIONS)
    assert world.markers() == [(0, 1, "abort")]


def test_what_is_open_for_too_long_is_aborted():
    world = TransactionWorld()
    claim, other = world.producer(timeout_ms=5_000), world.producer("other")
    world.add(claim), world.add(other)
    world.pass_time(3_000)
    world.add(claim, PAYMENTS)  # doesn't prolong it
    world.pass_time(2_000)
    assert world.coordinator.abort_timed_out() == 0
    world.pass_time(1)
    assert world.coordinator.abort_timed_out() == 1
    world.pass_time(0)
    assert (world.state(), world.state("other")) == (S.COMPLETE_ABORT, S.ONGOING)
    assert world.end(claim) is E.PRODUCER_FENCED
    assert world.markers() == world.markers(PAYMENTS) == [(claim.producer_id, 1, "abort")]
    assert world.coordinator.abort_timed_out() == 0


def test_ids_that_nobody_uses_are_forgotten():
    world = TransactionWorld(transactional_id_expiration_ms=10_000)
    world.producer()
    world.add(world.producer("open"))
    world.pass_time(9_999)
    assert world.coordinator.expire_ids() == 0
    world.pass_time(1)
    assert world.coordinator.expire_ids() == 1
    world.pass_time(0)
    for _ in range(2):
        assert list(world.store.transactions) == ["open"]
        world.restart()


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("turns", range(12))
def test_killed_at_any_turn_a_transaction_ends_one_way(is_commit, turns):
    """Decided or not: all its partitions and its offsets agree, and so does what its producer is told later."""
    world = TransactionWorld()
    offsets = world.groups.store.ownership.partition_for("group")
    world.groups.commit(1)
    claim = world.producer()
    world.add(claim, ORDERS, PAYMENTS, offsets)
    world.groups.commit(2, producer_id=claim.producer_id, producer_epoch=0)
    world.end(claim, is_commit=is_commit, turns=False)
    world.turns.take(turns)
    world.restart()
    if world.state() is S.ONGOING:  # the decision was not in the log
        assert world.groups.committed(require_stable=True) is E.UNSTABLE_OFFSET_COMMIT
        assert world.end(claim, is_commit=is_commit) is E.NONE
    assert world.state() is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
    end = "commit" if is_commit else "abort"
    for key in (ORDERS, PAYMENTS, offsets):
        assert {marker for *_, marker in world.markers(key)} == {end}
    assert world.groups.committed(require_stable=True) == (2 if is_commit else 1)
    assert world.end(claim, is_commit=is_commit) is E.NONE
    assert world.add(claim) is E.NONE


def test_the_kills_above_fall_before_and_after_the_decision():
    states = set()
    for turns in range(12):
        world = TransactionWorld()
        claim = world.producer()
        world.add(claim, ORDERS, PAYMENTS, world.groups.store.ownership.partition_for("group"))
        world.end(claim, turns=False)
        world.turns.take(turns)
        states.add(world.state())
    assert states == {S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT}


def test_who_is_not_the_coordinator_says_so():
    world = TransactionWorld()
    claim = world.producer()
    partition = world.store.ownership.partition_for("id").partition
    world.store.ownership.loading.add(partition)
    assert world.add(claim) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert list_transactions(world.store, TransactionFilter()).error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.log.is_held = True
    world.store.ownership.loading.clear()
    answers: list[Errors] = []
    world.coordinator.add_partitions(claim, [ORDERS], answers.append)
    world.store.on_resignation(partition)
    world.log.let_go()
    world.pass_time(0)
    assert answers == [E.NOT_COORDINATOR]  # what it was told is for the next coordinator to find
    assert world.end(claim) is E.NOT_COORDINATOR
    world.store.on_election(partition, 5, world.coordinator.on_loaded)
    world.pass_time(0)
    assert world.state() is S.ONGOING


def test_a_transaction_has_the_partitions_that_were_added():
    world = TransactionWorld()
    claim = world.producer()
    assert world.coordinator.verify(claim, ORDERS) is E.INVALID_TXN_STATE
    world.add(claim, ORDERS)
    assert world.coordinator.verify(claim, ORDERS) is E.NONE
    assert world.coordinator.verify(claim, PAYMENTS) is E.INVALID_TXN_STATE
    world.end(claim)
    assert world.coordinator.verify(claim, ORDERS) is E.INVALID_TXN_STATE


def test_transactions_are_listed_and_described():
    world = TransactionWorld()
    claim = world.producer()
    world.producer("other")
    world.add(claim, ORDERS)
    world.pass_time(5_000)

    def ids(**wanted):
        return [
            one.transactional_id for one in list_transactions(world.store, TransactionFilter(**wanted)).transactions
        ]

    assert ids() == ["id", "other"]
    assert (ids(states=["Ongoing"]), ids(states=["Empty"])) == (["id"], ["other"])
    assert (ids(producer_ids=[claim.producer_id]), ids(duration_ms=4_999), ids(duration_ms=5_000)) == (
        ["id"],
        ["id"],
        [],
    )
    assert list_transactions(world.store, TransactionFilter(states=["Nowhere"])).unknown_states == ("Nowhere",)
    assert S.PREPARE_EPOCH_FENCE.title == "PrepareEpochFence"
    assert describe_transaction(world.store, "id").partitions == {ORDERS}
    with pytest.raises(ApiError) as caught:
        describe_transaction(world.store, "nobody")
    assert caught.value.error is E.TRANSACTIONAL_ID_NOT_FOUND


def test_records_are_those_of_kafka():
    values = TransactionValues(
        7,
        3,
        60_000,
        S.ONGOING,
        frozenset({TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)}),
        11,
        12,
    )
    key, value = encode_transaction("id", values)
    assert key == b"\0\0\0\2id"
    topics = pack(">ih1siii", 2, 1, b"a", 2, 0, 2) + pack(">h1sii", 1, b"b", 1, 1)
    assert value == pack(">hqhib", 0, 7, 3, 60_000, 1) + topics + pack(">qq", 12, 11)
    assert (decode_transactional_id(key), decode_transaction(value)) == ("id", values)
    empty = TransactionValues(7, 3, 60_000)
    _, value = encode_transaction("id", empty)
    assert value is not None
    assert decode_transaction(value) == empty
    for size in range(len(value)):
        with pytest.raises(UnreadableRecord):
            decode_transaction(value[:size])
