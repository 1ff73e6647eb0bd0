"""Topics that aren't sources any more, and of which the group still has something: held records, or records not read.

A policy was deleted, or matches other topics now, or names the topic as its dead-letter topic. What is held keeps its
decision, so such a topic is consumed until it is empty.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import TopicPartition as ClientPartition

from policies.kafka_clients import AdminClient
from sidecar.kafka.backlog import Backlog, BacklogUnavailable
from sidecar.kafka.commit_reader import commits_at, group_commits
from sidecar.kafka.topics import topic_ids, topic_sizes
from sidecar.ledger.commit_metadata import CommitState, decode_metadata
from sidecar.model.record import TopicPartition
from sidecar.model.stats import Left


class Leftovers:
    """Asks the brokers; used by housekeeping and by REST, each call with clients of its own. All raise KafkaException,
    or TimeoutError, when the brokers don't answer.
    """

    def __init__(self, client: Mapping[str, Any], group: str) -> None:
        self._client = dict(client)
        self._group = group
        self._backlog = Backlog(client, group)
        self._topics: frozenset[str] = frozenset()  # with commits of the group

    def beside(self, known: Collection[str], anew: bool) -> dict[str, Left]:
        """Of existing topics with commits of the group, without the `known`: those of which it has anything.

        `anew`: it is asked for which topics there are commits; else these are as the last time.
        """
        if anew:
            commits = _states(group_commits(self._client, self._group))
            self._topics = frozenset(lane.topic for lane, _ in commits)
        return self.of(self._topics.difference(known))

    def of(self, topics: Collection[str]) -> dict[str, Left]:
        """Records that the group still has of these topics, held or not read; a topic with none is left out."""
        if not topics:
            return {}
        sizes = topic_sizes(AdminClient(self._client), topics)
        places = [ClientPartition(topic, number) for topic, size in sizes.items() for number in range(size)]
        return self._left(dict(_states(commits_at(self._client, self._group, places))))

    def _left(self, commits: Mapping[TopicPartition, CommitState]) -> dict[str, Left]:
        if not commits:
            return {}
        ids = topic_ids(AdminClient(self._client), sorted({lane.topic for lane in commits}))
        # A topic may have been deleted, and created again for something else.
        own = {
            lane: state
            for lane, state in commits.items()
            if not state.topic_id or ids.get(lane.topic, state.topic_id) == state.topic_id
        }
        try:
            ends = self._backlog.ends(own)
            bounds = {lane: (state.low, ends.get(lane, state.low)) for lane, state in own.items()}
            unread = self._backlog.unread(bounds)
        except BacklogUnavailable as error:
            raise TimeoutError(str(error)) from None
        left: dict[str, Left] = {}
        for lane, state in sorted(own.items()):
            before = left.get(lane.topic, Left(0, 0))
            unsettled = bounds[lane][1] - state.low if lane in unread else 0
            left[lane.topic] = Left(before.held + state.overflow_held, before.unsettled + unsettled)
        return {topic: one for topic, one in left.items() if one.records}


def in_words(left: Mapping[str, Left]) -> list[str]:
    """One sentence for each topic."""
    return [
        f"{topic}: no policy makes it a source any more; it is read until {one.records} records are settled"
        for topic, one in sorted(left.items())
    ]


def _states(commits: Iterable[ClientPartition]) -> Iterable[tuple[TopicPartition, CommitState]]:
    for one in commits:
        state = decode_metadata(one.offset, one.metadata or "")
        if state is not None:
            yield TopicPartition(one.topic, one.partition), state
