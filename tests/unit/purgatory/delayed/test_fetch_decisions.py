"""Table 2.2, fetch, row by row: what is refused, what ends a wait and in which order; and DelayedFetchTest."""

import pytest

from purgatory.delayed.delayed_fetch import (
    ClientMetadata,
    DelayedFetch,
    FetchDecision,
    FetchParams,
    FetchPartition,
    FetchPartitionStatus,
    FetchSnapshot,
    decide_fetch,
    isolation_of,
)
from purgatory.errors import Errors
from purgatory.log_offsets import (
    UNKNOWN_OFFSET,
    EpochEndOffset,
    Isolation,
    LogOffsetMetadata,
    LogOffsetSnapshot,
    TopicPartition,
)
from purgatory.replica_manager.admission import FetchFacts, refuse_fetch

KEY = TopicPartition("topic", 0)


@pytest.mark.parametrize(
    ("row", "facts", "expected"),
    [
        ("A2 id", {"has_topic_id": False}, 100),
        ("A2 id before v13", {"has_topic_id": False, "api_version": 12}, 0),
        ("A2 id first", {"has_topic_id": False, "is_authorized": False}, 100),
        ("A2 unauthorised", {"is_authorized": False, "is_known": False}, 29),
        ("A2 unknown", {"is_known": False}, 3),
        ("A2 follower", {"is_from_follower": True, "has_cluster_action": False}, 29),
        ("A2 follower needs no topic right", {"is_from_follower": True, "is_authorized": False}, 0),
        ("ok", {}, 0),
    ],
)
def test_stage_a(row, facts, expected):
    assert refuse_fetch(FetchFacts(**facts)) == expected, row


@pytest.mark.parametrize(
    ("params", "leader_only"),
    [
        ({"replica_id": 1}, True),
        ({"client_metadata": None}, True),
        ({}, False),
        ({"replica_id": 1, "client_metadata": None}, True),
    ],
)
def test_row_a5_who_may_answer(params, leader_only):
    assert FetchParams(**params).fetch_only_leader is leader_only


@pytest.mark.parametrize(
    ("replica_id", "isolation_level", "expected"),
    [
        (2, 0, Isolation.LOG_END),
        (2, 1, Isolation.LOG_END),
        (-1, 1, Isolation.TXN_COMMITTED),
        (-1, 0, Isolation.HIGH_WATERMARK),
    ],
)
def test_row_a5_how_far_it_may_see(replica_id, isolation_level, expected):
    assert isolation_of(replica_id, isolation_level) is expected


def at(offset, segment=0):
    """Ten bytes a record."""
    return LogOffsetMetadata(offset, segment, 10 * (offset - segment))


def ends(log_end=100, high_watermark=90, last_stable=80, segment=0):
    return LogOffsetSnapshot(0, at(log_end, segment), at(high_watermark, segment), at(last_stable, segment))


def decide(fetch_offset=50, snapshot=None, *, start=None, params=None, **partition):
    status = FetchPartitionStatus(FetchPartition(fetch_offset, **partition), start or at(fetch_offset))
    options = {"min_bytes": 10_000, **(params or {})}
    return decide_fetch(FetchParams(**options), [(status, snapshot or FetchSnapshot(ends=ends()))])


def failing(error):
    return FetchSnapshot(error)


FOLLOWER = {"replica_id": 2, "isolation": Isolation.LOG_END}
COMMITTED = {"isolation": Isolation.TXN_COMMITTED}
THROTTLED = FetchSnapshot(ends=ends(), is_throttled=True)
LATER_SEGMENT = FetchSnapshot(ends=ends(segment=40))


@pytest.mark.parametrize(
    ("row", "arguments", "expected"),
    [
        ("A/B", {"snapshot": failing(Errors.NOT_LEADER_OR_FOLLOWER)}, "A/B"),
        ("C", {"snapshot": failing(Errors.UNKNOWN_TOPIC_OR_PARTITION)}, "C"),
        ("D", {"snapshot": failing(Errors.KAFKA_STORAGE_ERROR)}, "D"),
        ("E", {"snapshot": failing(Errors.FENCED_LEADER_EPOCH)}, "E"),
        ("E newer epoch is not caught", {"snapshot": failing(Errors.UNKNOWN_LEADER_EPOCH)}, "-"),
        ("F1 consumer", {"fetch_offset": 91}, "F1"),
        ("F1 committed", {"fetch_offset": 81, "params": COMMITTED}, "F1"),
        ("F1 follower", {"fetch_offset": 101, "params": FOLLOWER}, "F1"),
        ("F1 whatever the quota", {"fetch_offset": 101, "params": FOLLOWER, "snapshot": THROTTLED}, "F1"),
        ("at the end, consumer", {"fetch_offset": 90}, "-"),
        ("at the end, committed", {"fetch_offset": 80, "params": COMMITTED}, "-"),
        ("at the end, follower", {"fetch_offset": 100, "params": FOLLOWER}, "-"),
        ("at the end, after a roll", {"fetch_offset": 90, "start": at(90), "snapshot": LATER_SEGMENT}, "-"),
        ("F2", {"snapshot": LATER_SEGMENT}, "F2"),
        (
            "F2 follower, throttled",
            {"params": FOLLOWER, "snapshot": FetchSnapshot(ends=ends(segment=40), is_throttled=True)},
            "-",
        ),
        (
            "F2 consumer, throttled",
            {"snapshot": FetchSnapshot(ends=ends(segment=40), is_throttled=True)},
            "F2",
        ),
        ("G enough", {"params": {"min_bytes": 400}}, "G"),
        ("G a byte missing", {"params": {"min_bytes": 401}}, "-"),
        ("G limited by the partition", {"params": {"min_bytes": 400}, "max_bytes": 399}, "-"),
        ("G committed", {"params": {"min_bytes": 301, **COMMITTED}}, "-"),
        ("G follower", {"params": {"min_bytes": 500, **FOLLOWER}}, "G"),
        ("G follower, throttled", {"params": {"min_bytes": 1, **FOLLOWER}, "snapshot": THROTTLED}, "-"),
        ("G consumer, throttled", {"params": {"min_bytes": 1}, "snapshot": THROTTLED}, "G"),
        ("skipped", {"start": UNKNOWN_OFFSET, "snapshot": failing(Errors.FENCED_LEADER_EPOCH)}, "-"),
        ("positions unknown", {"start": LogOffsetMetadata(50), "params": {"min_bytes": 1}}, "-"),
        ("nothing wanted", {"fetch_offset": 90, "params": {"min_bytes": 0}}, "G"),
    ],
)
def test_stage_c(row, arguments, expected):
    assert decide(**arguments) is FetchDecision(expected), row


@pytest.mark.parametrize(
    ("row", "last_fetched_epoch", "epoch_end", "expected"),
    [
        ("not given", None, EpochEndOffset(), "-"),
        ("error", 3, Errors.NOT_LEADER_OR_FOLLOWER, "H"),
        ("undefined", 3, EpochEndOffset(), "H"),
        ("older epoch", 3, EpochEndOffset(2, 90), "H"),
        ("ends before", 3, EpochEndOffset(3, 89), "H"),
        ("no divergence", 3, EpochEndOffset(3, 90), "-"),
    ],
)
def test_row_h(row, last_fetched_epoch, epoch_end, expected):
    snapshot = FetchSnapshot(ends=ends(), epoch_end=epoch_end)
    assert decide(90, snapshot, last_fetched_epoch=last_fetched_epoch) is FetchDecision(expected), row


def test_the_first_partition_that_ends_the_wait_decides():
    def of(*snapshots, min_bytes=10_000):
        statuses = [FetchPartitionStatus(FetchPartition(50), at(50)) for _ in snapshots]
        return decide_fetch(FetchParams(min_bytes=min_bytes), zip(statuses, snapshots, strict=True))

    plenty, truncated, fenced = (
        FetchSnapshot(ends=ends()),
        FetchSnapshot(ends=ends(40, 40, 40)),
        failing(Errors.FENCED_LEADER_EPOCH),
    )
    assert of(plenty, fenced, truncated) is FetchDecision.FENCED_LEADER_EPOCH
    assert of(plenty, truncated, fenced) is FetchDecision.TRUNCATED
    assert of(plenty, fenced, min_bytes=1) is FetchDecision.FENCED_LEADER_EPOCH  # bytes are counted at the end
    assert of(plenty, plenty, min_bytes=800) is FetchDecision.ENOUGH_BYTES
    assert of(plenty, plenty, min_bytes=801) is FetchDecision.WAIT


@pytest.mark.parametrize(("high_watermark", "completes"), [(0, True), (450, False), (500, False)])
def test_an_end_without_position(high_watermark, completes):
    """DelayedFetchTest: below the fetch offset it is a truncation; above, its bytes can't be counted."""
    bare = LogOffsetMetadata(high_watermark)
    snapshot = FetchSnapshot(ends=LogOffsetSnapshot(0, at(500), bare, bare))
    assert (decide(450, snapshot, params={"min_bytes": 1}) is not FetchDecision.WAIT) is completes


@pytest.mark.parametrize(
    ("snapshot", "decision"),
    [
        (failing(Errors.FENCED_LEADER_EPOCH), FetchDecision.FENCED_LEADER_EPOCH),
        (failing(Errors.NOT_LEADER_OR_FOLLOWER), FetchDecision.NOT_LEADER_OR_FOLLOWER),
        (FetchSnapshot(ends=ends(), epoch_end=EpochEndOffset(3, 89)), FetchDecision.DIVERGED),
    ],
)
def test_it_reads_once_whatever_ended_the_wait(snapshot, decision):
    read = []
    status = FetchPartitionStatus(FetchPartition(90, last_fetched_epoch=3), at(90))
    operation = DelayedFetch(
        FetchParams(client_metadata=ClientMetadata()),
        [(KEY, status)],
        lambda key, partition: snapshot,
        lambda: read.append(True),
    )
    assert operation.try_complete()
    assert (operation.decision, read) == (decision, [True])
    operation.run()
    assert read == [True]


def test_no_partition_is_looked_at_after_the_one_that_decides():
    looked = []

    def look(key, partition):
        looked.append(key)
        return failing(Errors.UNKNOWN_TOPIC_OR_PARTITION)

    status = FetchPartitionStatus(FetchPartition(50), at(50))
    other = TopicPartition("topic", 1)
    assert DelayedFetch(FetchParams(), [(KEY, status), (other, status)], look, lambda: None).try_complete()
    assert looked == [KEY]


def test_offsets_without_position():
    bare, placed, older = LogOffsetMetadata(5), at(50, 40), at(20)
    assert bare.message_offset_only
    assert not any((bare.on_older_segment(placed), placed.on_older_segment(bare), bare.on_same_segment(placed)))
    assert older.on_older_segment(placed)
    assert placed.position_diff(at(45, 40)) == 50
    for other in (bare, older):
        with pytest.raises(ValueError, match="in one segment"):
            placed.position_diff(other)
