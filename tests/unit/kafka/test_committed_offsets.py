"""Where partitions begin while Kafka hides a commit of one of them."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AclOperation

from sidecar.kafka import committed_offsets
from sidecar.kafka.committed_offsets import KafkaStarts, _Topic
from sidecar.ledger.commit_metadata import CommitState, encode_metadata
from sidecar.ledger.topic import CommitsHidden, LedgerUnavailable
from sidecar.model.record import Position, TopicPartition

BEGUN_WITH, NOW = 12, 13  # partitions
LANES = [TopicPartition("in", partition) for partition in range(NOW)]
COMMITTED = encode_metadata(
    CommitState(
        low=5, watermark=Position(1, 2), acknowledged=3, block_offset=4, recovery_pointer=4, overflow_held=0,
        rebuild_pointer=4, topic_id="id", leader_epoch=-1, partitions=BEGUN_WITH,
    )
)  # fmt: skip


@dataclass
class Consumer:
    """Each partition that the group began with has a commit; nothing is said of any of them beside a hidden one."""

    hidden: set[int] = field(default_factory=set)
    leaderless: set[int] = field(default_factory=set)

    def committed(self, wanted: list[ClientPartition], timeout: float) -> list[ClientPartition]:
        if self.hidden & {one.partition for one in wanted}:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [
            ClientPartition(
                "in", one.partition, *((5, COMMITTED) if one.partition < BEGUN_WITH else (OFFSET_INVALID, ""))
            )
            for one in wanted
        ]

    def get_watermark_offsets(self, one: ClientPartition, **__: object) -> tuple[int, int]:
        if one.partition in self.leaderless:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return 0, 100

    def log_bounds(self, places: list[ClientPartition], _: float) -> dict[tuple[str, int], tuple[int, int]]:
        return {(one.topic, one.partition): self.get_watermark_offsets(one) for one in places}

    def list_topics(self, *_: object, **__: object) -> None:
        pass


def starts_of(consumer: Consumer, start_latest: bool) -> KafkaStarts:
    made = KafkaStarts({"bootstrap.servers": "127.0.0.1:1"}, "g", start_latest)
    made._consumer, made._admin = consumer, object()
    made._topics = lambda topics: {"in": _Topic("id", NOW)}  # type: ignore[method-assign]
    return made


class NothingCommitted(Consumer):
    """All commits have expired, or the group was deleted."""

    def committed(self, wanted: list[ClientPartition], timeout: float) -> list[ClientPartition]:
        return [ClientPartition("in", one.partition, OFFSET_INVALID, "") for one in wanted]


def test_a_start_at_the_end_says_where_it_may_begin_at_the_earliest() -> None:
    assert starts_of(NothingCommitted(), start_latest=True).starts(LANES)[LANES[3]][:1] == (100,)
    assert starts_of(NothingCommitted(), start_latest=True).starts(LANES)[LANES[3]].earliest == 0
    assert starts_of(NothingCommitted(), start_latest=False).starts(LANES)[LANES[3]].earliest == -1


def test_a_commit_is_used_only_once_it_is_known_to_be_about_this_topic() -> None:
    starts = starts_of(Consumer(), start_latest=False)
    known = starts.starts(LANES[:1])[LANES[0]]
    assert (known.offset, known.made_anew) == (5, False)
    assert starts._consumer is not None, "one alone is asked about where logs were cut back: others may follow"
    starts.starts(LANES[:2])
    assert starts._consumer is None, "until the next assignment nobody needs it"
    starts = starts_of(Consumer(), start_latest=False)
    starts._topics = lambda topics: {"in": _Topic("another", NOW)}  # type: ignore[method-assign]
    anew = starts.starts(LANES[:1])[LANES[0]]
    assert (anew.offset, anew.metadata, anew.made_anew) == (0, "", True)
    starts = starts_of(Consumer(), start_latest=False)
    starts._topics = lambda topics: {}  # type: ignore[method-assign]
    assert starts.starts(LANES) == {}, "nobody has said which topic it is: it waits"


@pytest.mark.parametrize("start_latest", [False, True])
def test_only_those_wait_that_need_what_is_hidden(start_latest: bool) -> None:
    starts = starts_of(Consumer({3}), start_latest).starts(LANES)
    waiting = {3, 12} if start_latest else {3}  # whether 12 is new, or was added, the hidden one may know
    assert {lane.partition for lane in starts} == set(range(NOW)) - waiting
    assert {start.offset for lane, start in starts.items() if lane.partition < BEGUN_WITH} == {5}


def test_a_partition_that_waits_for_another_s_hidden_commit_says_so() -> None:
    with pytest.raises(CommitsHidden):
        starts_of(Consumer({3}), start_latest=True).starts(LANES[12:])


def test_with_nothing_hidden_an_added_partition_begins_at_its_beginning() -> None:
    assert starts_of(Consumer(), start_latest=True).starts(LANES)[LANES[12]].offset == 0


def test_those_that_wait_beside_hidden_ones_do_not_keep_it_from_being_said() -> None:
    consumer = Consumer({3}, leaderless={2, 4})
    known = starts_of(consumer, start_latest=False).starts(LANES)
    assert {lane.partition for lane in known} == set(range(NOW)) - {2, 3, 4}
    with pytest.raises(CommitsHidden):
        starts_of(consumer, start_latest=False).starts(LANES[2:5])
    consumer.hidden.clear()
    starts = starts_of(consumer, start_latest=False)
    assert starts.starts(LANES[2:5]).keys() == {LANES[3]}
    assert starts.starts([LANES[2], LANES[4]]) == {}


class CutBack(Consumer):
    """The log ends before what was committed."""

    def get_watermark_offsets(self, one: ClientPartition, **__: object) -> tuple[int, int]:
        return 1, 3


def test_a_commit_behind_the_end_of_a_log_that_was_cut_back_says_what_was_settled() -> None:
    start = starts_of(CutBack(), start_latest=False).starts(LANES[:1])[LANES[0]]
    assert (start.offset, start.metadata, start.made_anew) == (5, COMMITTED, False)
    assert (start.log_start, start.log_end) == (1, 3)


def test_an_offset_behind_the_end_that_somebody_else_committed_is_not_used() -> None:
    consumer = CutBack()
    consumer.committed = lambda wanted, timeout: [ClientPartition("in", 0, 5, "")]  # type: ignore[method-assign]
    start = starts_of(consumer, start_latest=False).starts(LANES[:1])[LANES[0]]
    assert (start.offset, start.metadata, start.made_anew) == (1, "", True)


class Described:
    """An admin client whose brokers tell this of a topic."""

    def __init__(self, told: object) -> None:
        self.told = told

    def describe_topics(self, topics: TopicCollection, **options: object) -> dict[str, Future[object]]:
        assert options["include_authorized_operations"]
        future: Future[object] = Future()
        if isinstance(self.told, Exception):
            future.set_exception(self.told)
        else:
            future.set_result(SimpleNamespace(authorized_operations=self.told))
        return {"in": future}


def refusal(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


@pytest.mark.parametrize(
    ("told", "may"),
    [
        ([AclOperation.DESCRIBE, AclOperation.READ], True),
        ([AclOperation.DESCRIBE], False),
        (None, False),
        (refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED), False),
        (refusal(KafkaError.UNKNOWN_TOPIC_OR_PART), True),
    ],
    ids=["read", "described", "not told", "refused", "gone"],
)
def test_whether_a_source_may_be_read_is_what_the_brokers_tell(
    monkeypatch: pytest.MonkeyPatch, told: object, may: bool
) -> None:
    monkeypatch.setattr(committed_offsets, "AdminClient", lambda _: Described(told))
    assert starts_of(Consumer(), start_latest=False).may_read("in") is may


@pytest.mark.parametrize("error", [refusal(KafkaError._TIMED_OUT), TimeoutError()], ids=repr)
def test_brokers_that_are_away_tell_nothing_of_rights(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(committed_offsets, "AdminClient", lambda _: Described(error))
    with pytest.raises(LedgerUnavailable, match="the right to read in"):
        starts_of(Consumer(), start_latest=False).may_read("in")
