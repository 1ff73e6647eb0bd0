"""A quorum of controllers as the reference broker tells it: who votes and leads, and how far those are who went."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.cluster.quorum import Quorum, VoterState
from broker.protocol.api_keys import ApiKey
from tests.services.raw_client import RawClient
from tests.services.reference_broker import ReferenceBroker


def test_each_leader_has_an_epoch_and_each_change_an_offset() -> None:
    quorum = Quorum()
    said = []
    for leader_id in (1, 1, 2, -1, 2, 1):
        quorum.append(leader_id, [1, 2], 0)
        said.append((quorum.leader_id, quorum.epoch, quorum.end_offset))
    assert said == [(1, 1, 1), (1, 1, 2), (2, 2, 3), (-1, 2, 4), (2, 3, 5), (1, 4, 6)]


def test_who_is_there_has_everything_and_who_went_has_what_there_was_then() -> None:
    quorum = Quorum()
    for _ in range(3):
        quorum.append(1, [1, 2, 3], 100)
    quorum.append(1, [1, 3], 200)  # the change that 2 is gone, which 2 hasn't
    quorum.append(1, [1, 3], 300)
    assert [quorum.voter(number, 400) for number in (1, 2, 3)] == [
        VoterState(5, 400, 400),
        VoterState(3, 200, 200),
        VoterState(5, 400, 400),
    ]
    quorum.append(1, [1, 2, 3], 500)
    assert quorum.voter(2, 600) == VoterState(6, 600, 600)


def test_of_who_never_came_nothing_is_known() -> None:
    quorum = Quorum(epoch=7, end_offset=70)
    quorum.append(1, [1], 100)
    assert (quorum.epoch, quorum.end_offset) == (8, 71)
    assert quorum.voter(2, 200) == VoterState(-1, -1, -1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReferenceBroker]:
    cluster = ReferenceBroker(tmp_path, 3).start()
    yield cluster
    cluster.stop()


def described(cluster: ReferenceBroker) -> Any:
    """Quorum, as a broker that is there describes it."""
    with RawClient(cluster.bootstrap) as client:
        wanted = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        return client.ask(ApiKey.DESCRIBE_QUORUM, 2, topics=[wanted])


def test_another_leads_when_the_controller_is_killed(cluster: ReferenceBroker) -> None:
    [topic] = described(cluster).topics
    [before] = topic.partitions
    assert (before.leader_id, len(before.current_voters)) == (1, 3)
    cluster.run(cluster.cluster.kill_broker(1))
    answer = described(cluster)
    [after] = answer.topics[0].partitions
    assert (after.leader_id, after.leader_epoch) == (2, before.leader_epoch + 1)
    assert [node.node_id for node in answer.nodes] == [1, 2, 3], "who is gone votes on"
    gone, *present = after.current_voters
    assert gone.log_end_offset == before.high_watermark < after.high_watermark
    assert gone.last_fetch_timestamp <= min(voter.last_fetch_timestamp for voter in present)
    assert {voter.log_end_offset for voter in present} == {after.high_watermark}


def test_epochs_and_offsets_go_on_over_a_restart(cluster: ReferenceBroker) -> None:
    [before] = described(cluster).topics[0].partitions
    cluster.stop()
    cluster.start()
    [after] = described(cluster).topics[0].partitions
    assert (after.leader_id, after.leader_epoch) == (1, before.leader_epoch + 1)
    assert after.high_watermark > before.high_watermark
