"""The in-sync replicas: who leaves, who joins, what the controller's answers do. PartitionTest, IsrExpirationTest."""

import threading

import pytest

from purgatory.errors import ApiError, Errors
from purgatory.partition.isr import AlterOutcome, AlterPartitionReply
from purgatory.partition.replica import FollowerFetch
from tests.unit.purgatory.partition.test_partition import (
    LAG_MS,
    REPLICAS,
    append,
    error_of,
    fetch,
    high_watermark,
    leader,
)
from tests.unit.replica_world import Brokers, assignment


def answer(partition, proposal, error=Errors.NONE, *, isr=None, epochs=(5, 1), now_ms=0):
    members = frozenset(broker for broker, _ in proposal.isr) if isr is None else frozenset(isr)
    reply = AlterPartitionReply(error, epochs[0], epochs[1], members)
    return partition.alter_partition_answered(proposal, reply, now_ms)


def isr_of(proposal):
    return [broker_id for broker_id, _ in proposal.isr]


def test_a_follower_is_caught_up_when_it_reaches_the_end_and_not_before():
    partition = leader(6, now_ms=0)
    append(partition, 4)
    fetch(partition, 2, 3, 100)
    assert partition.remote[2].last_caught_up_ms == 0
    fetch(partition, 2, 10, 200)
    assert (partition.remote[2].last_caught_up_ms, partition.remote[2].log_end.offset) == (200, 10)


def test_a_follower_joins_once_it_has_all_from_before_this_leader():
    now_ms = 10 * LAG_MS  # 3 has not been caught up for long
    partition = leader(10, now_ms, isr=(1, 2))
    fetch(partition, 2, 4, now_ms)
    assert high_watermark(partition) == 4
    partition.make_leader(assignment(epoch=6, partition_epoch=1, replicas=REPLICAS, isr=(1, 2)), now_ms)
    append(partition, 5, now_ms)
    assert partition.leader_epoch_start_offset == 10
    assert fetch(partition, 3, 4).proposal is None  # at the high watermark, but below the epoch's start
    assert fetch(partition, 3, 9).proposal is None
    assert isr_of(fetch(partition, 3, 10).proposal) == [1, 2, 3]


def test_an_expansion_counts_before_it_is_answered_and_is_committed_by_the_answer():
    partition = leader(10, isr=(1, 2))
    proposal = fetch(partition, 3, 10, broker_epoch=100).proposal
    assert (proposal.leader_id, proposal.leader_epoch, proposal.partition_epoch) == (1, 5, 0)
    assert proposal.isr == ((1, 100), (2, -1), (3, 100))
    assert partition.state.isr == {1, 2}
    assert partition.state.maximal_isr == {1, 2, 3}
    append(partition, 1)
    fetch(partition, 2, 11)
    assert high_watermark(partition) == 10  # waits for 3 already
    assert answer(partition, proposal)[0] is AlterOutcome.APPLIED
    assert (partition.state.isr, partition.partition_epoch) == ({1, 2, 3}, 1)


def test_one_proposal_at_a_time():
    partition = leader(3, isr=(1,))
    first = fetch(partition, 2, 3).proposal
    assert fetch(partition, 3, 3).proposal is None
    assert partition.maybe_shrink_isr(10 * LAG_MS) is None
    answer(partition, first)
    assert isr_of(fetch(partition, 3, 3).proposal) == [1, 2, 3]


@pytest.mark.parametrize("state", ["fenced", "shutting_down", "other_life", "gone"])
def test_who_is_not_eligible_does_not_join(state):
    brokers = Brokers()
    partition = leader(3, isr=(1, 2), brokers=brokers)
    if state == "fenced":
        brokers.fenced.add(3)
    elif state == "shutting_down":
        brokers.shutting_down.add(3)
    elif state == "gone":
        del brokers.epochs[3]
    assert fetch(partition, 3, 3, broker_epoch=101 if state == "other_life" else -1).proposal is None
    brokers.fenced.clear()
    brokers.shutting_down.clear()
    brokers.epochs[3] = 101
    assert isr_of(fetch(partition, 3, 3, broker_epoch=101).proposal) == [1, 2, 3]


def test_a_fetch_from_a_former_life_is_refused():
    partition = leader(3, brokers=Brokers())
    assert error_of(fetch, partition, 2, 3, broker_epoch=99) is Errors.NOT_LEADER_OR_FOLLOWER
    assert partition.remote[2].log_end.offset == -1
    assert error_of(fetch, partition, 2, 3, broker_epoch=100) is Errors.NONE
    assert error_of(fetch, partition, 2, 3, broker_epoch=-1) is Errors.NONE
    with pytest.raises(ApiError):
        fetch(partition, 7, 3)


@pytest.mark.parametrize(("state", "expected"), [("fenced", 20), ("shutting_down", 20), ("eligible", 10)])
def test_a_replica_about_to_join_holds_the_high_watermark_only_if_it_may_join(state, expected):
    brokers = Brokers()
    partition = leader(10, isr=(1, 2), brokers=brokers, replicas=REPLICAS)
    partition.remote[3] = partition.remote[3].fetched(  # caught up a moment ago, not in the ISR
        fetch_of(partition, 3, 10), 10, 1000
    )
    if state != "eligible":
        getattr(brokers, state).add(3)
    fetch(partition, 2, 10, 1000)
    assert high_watermark(partition) == 10
    append(partition, 10, 1500)
    fetch(partition, 2, 20, 1600)
    assert high_watermark(partition) == expected


def fetch_of(partition, broker_id, offset):
    return FollowerFetch(broker_id, partition.log.storage.locate(offset))


def test_who_lags_leaves_after_the_lag_time_and_the_high_watermark_follows_the_answer():
    partition = leader(10)
    fetch(partition, 2, 10)
    assert partition.maybe_shrink_isr(LAG_MS) is None  # just become leader
    fetch(partition, 2, 10, LAG_MS)
    proposal = partition.maybe_shrink_isr(LAG_MS + 1)
    assert isr_of(proposal) == [1, 2]
    assert (partition.state.isr, partition.state.maximal_isr, high_watermark(partition)) == ({1, 2, 3}, {1, 2, 3}, 0)
    outcome, moved = answer(partition, proposal, now_ms=LAG_MS + 1)
    assert (outcome, moved.high_watermark, high_watermark(partition)) == (AlterOutcome.APPLIED, True, 10)
    assert partition.state.isr == {1, 2}


def test_the_high_watermark_stands_still_under_min_isr():
    partition = leader(isr=(1, 2), min_insync_replicas=3)
    append(partition, 10)
    fetch(partition, 2, 10)
    proposal = fetch(partition, 3, 10).proposal
    assert partition.state.maximal_isr == {1, 2, 3}
    assert high_watermark(partition) == 0  # what is committed counts
    assert answer(partition, proposal)[1].high_watermark
    assert high_watermark(partition) == 10


def test_a_follower_whose_previous_fetch_reached_the_end_stays():
    """The follower reads steadily and never sees the very end, because more comes meanwhile."""
    partition = leader(5, replicas=(1, 2))
    fetch(partition, 2, 5, 1000)
    append(partition, 5, 2000)
    fetch(partition, 2, 5, 10_000)  # the end is 10 now
    append(partition, 5, 20_000)
    fetch(partition, 2, 10, 35_000)  # where the end was at its previous fetch: caught up at 10,000
    assert partition.remote[2].last_caught_up_ms == 10_000
    assert partition.maybe_shrink_isr(10_000 + LAG_MS) is None
    assert isr_of(partition.maybe_shrink_isr(10_001 + LAG_MS)) == [1]


def test_a_follower_at_the_end_stays_however_long_nothing_happens():
    partition = leader(5, replicas=(1, 2))
    fetch(partition, 2, 5, 0)
    assert partition.maybe_shrink_isr(100 * LAG_MS) is None


@pytest.mark.parametrize("story", ["stuck", "silent", "slow", "idle"])
def test_who_leaves_for_lag(story):
    """IsrExpirationTest: stuck before the end, never fetched, too slow, caught up and idle."""
    partition = leader(15, replicas=(1, 2))
    if story == "stuck":
        for now_ms in range(0, LAG_MS + 2, 1000):
            fetch(partition, 2, 14, now_ms)
    elif story == "slow":
        append(partition, 5)
        fetch(partition, 2, 10, 1)
        fetch(partition, 2, 12, LAG_MS)
    elif story == "idle":
        fetch(partition, 2, 15, 0)
    proposal = partition.maybe_shrink_isr(LAG_MS + 1)
    assert (proposal is None) == (story == "idle")
    if story == "slow":
        answer(partition, proposal)
        proposal = fetch(partition, 2, partition.log.log_end_offset, LAG_MS + 2).proposal
        assert isr_of(proposal) == [1, 2]


ANSWERS = [
    (Errors.INELIGIBLE_REPLICA, AlterOutcome.ROLLED_BACK),
    (Errors.OPERATION_NOT_ATTEMPTED, AlterOutcome.ROLLED_BACK),
    (Errors.UNKNOWN_TOPIC_OR_PARTITION, AlterOutcome.KEPT),
    (Errors.UNKNOWN_TOPIC_ID, AlterOutcome.KEPT),
    (Errors.FENCED_LEADER_EPOCH, AlterOutcome.KEPT),
    (Errors.INVALID_UPDATE_VERSION, AlterOutcome.KEPT),
    (Errors.INVALID_REQUEST, AlterOutcome.KEPT),
    (Errors.NEW_LEADER_ELECTED, AlterOutcome.KEPT),
    (Errors.NETWORK_EXCEPTION, AlterOutcome.RETRY),
    (Errors.UNKNOWN_SERVER_ERROR, AlterOutcome.RETRY),
]


@pytest.mark.parametrize(("error", "expected"), ANSWERS)
@pytest.mark.parametrize("change", ["expand", "shrink"])
def test_what_a_refused_proposal_leaves(error, expected, change):
    partition = leader(3, isr=(1, 2))
    fetch(partition, 2, 2)
    proposal = fetch(partition, 3, 3).proposal if change == "expand" else partition.maybe_shrink_isr(LAG_MS + 1)
    assert answer(partition, proposal, error)[0] is expected
    assert partition.state.isr == {1, 2}
    assert partition.state.is_in_flight == (expected is not AlterOutcome.ROLLED_BACK)
    if expected is AlterOutcome.RETRY:
        assert answer(partition, proposal)[0] is AlterOutcome.APPLIED


@pytest.mark.parametrize("news", ["new leader epoch", "same epoch", "follower"])
def test_an_answer_about_a_state_that_is_no_longer_is_ignored(news):
    partition = leader(3, isr=(1, 2))
    proposal = fetch(partition, 3, 3).proposal
    if news == "follower":
        partition.make_follower(assignment(leader=2, epoch=6, partition_epoch=1, replicas=REPLICAS))
    else:
        epoch = 6 if news == "new leader epoch" else 5
        partition.make_leader(assignment(epoch=epoch, partition_epoch=1, replicas=REPLICAS, isr=(1,)), 0)
    before = partition.state
    assert answer(partition, proposal, epochs=(5, 1))[0] is AlterOutcome.IGNORED
    assert answer(partition, proposal, Errors.INELIGIBLE_REPLICA)[0] is AlterOutcome.IGNORED
    assert partition.state == before


@pytest.mark.parametrize("epochs", [(4, 1), (5, -1)])
def test_an_answer_with_older_epochs_is_ignored(epochs):
    partition = leader(3, isr=(1, 2))
    proposal = fetch(partition, 3, 3).proposal
    assert answer(partition, proposal, epochs=epochs)[0] is AlterOutcome.IGNORED
    assert partition.state.is_in_flight


def test_a_replica_that_stays_assigned_is_never_missing():
    """PartitionLockTest: whoever looks while assignments change sees the replicas of both."""
    partition = leader(1)
    missing = []
    stop = threading.Event()

    def look():
        while not stop.is_set():
            if 2 not in partition.remote:
                missing.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(1, 300):
        replicas = (1, 2, 3) if number % 2 else (1, 2, 4)
        partition.make_leader(assignment(epoch=5, partition_epoch=number, replicas=replicas), 0)
    stop.set()
    thread.join()
    assert missing == []


def test_a_proposed_member_holds_the_high_watermark_whatever_becomes_of_it():
    """The controller may have let it in already."""
    brokers = Brokers()
    partition = leader(3, isr=(1, 2), brokers=brokers)
    assert fetch(partition, 3, 3).proposal is not None
    fetch(partition, 2, 3)
    brokers.fenced.add(3)
    append(partition, 2, 10 * LAG_MS)
    fetch(partition, 2, 5, 10 * LAG_MS)
    assert high_watermark(partition) == 3


def test_only_a_follower_that_has_moved_moves_the_high_watermark():
    partition = leader(5, isr=(1, 2))
    partition.remote[3] = partition.remote[3].fetched(fetch_of(partition, 3, 4), 4, 0)  # in sync a moment ago
    fetch(partition, 2, 5)
    assert high_watermark(partition) == 4
    assert not fetch(partition, 2, 5, 10 * LAG_MS).high_watermark  # although 3 does not count any more
    append(partition, 1, 10 * LAG_MS)
    assert high_watermark(partition) == 5


def test_an_answer_to_an_equal_but_earlier_proposal_is_ignored():
    partition = leader(3, isr=(1, 2))
    earlier = fetch(partition, 3, 3).proposal
    partition.make_leader(assignment(epoch=5, partition_epoch=1, replicas=REPLICAS, isr=(1, 2)), 0)
    later = fetch(partition, 3, 3).proposal
    assert earlier.isr == later.isr
    assert answer(partition, earlier)[0] is AlterOutcome.IGNORED
    assert answer(partition, later, epochs=(5, 2))[0] is AlterOutcome.APPLIED


def test_a_second_answer_to_a_proposal_that_was_taken_back_is_ignored():
    partition = leader(3, isr=(1, 2))
    fetch(partition, 2, 2)
    taken_back = fetch(partition, 3, 3).proposal
    assert answer(partition, taken_back, Errors.INELIGIBLE_REPLICA)[0] is AlterOutcome.ROLLED_BACK
    assert answer(partition, taken_back)[0] is AlterOutcome.IGNORED
    later = partition.maybe_shrink_isr(LAG_MS + 1)
    assert answer(partition, taken_back)[0] is AlterOutcome.IGNORED
    assert answer(partition, later)[0] is AlterOutcome.APPLIED
    assert partition.state.isr == {1}
