"""The commits of groups that nobody is a member of, read and written from outside."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException

from policies.kafka_clients import AdminClient
from sidecar.kafka.commit_reader import group_commits
from sidecar.kafka.committed_offsets import commits_of
from sidecar.model.record import TopicPartition
from sidecar.operations.renaming.errors import RenameError

ANSWER_S: Final = 30.0
Commits = dict[TopicPartition, tuple[int, str]]  # offset and metadata


@contextmanager
def kafka_failures(about: str) -> Iterator[None]:
    """Turn the client's errors into ours."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        words = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else "no answer"
        raise RenameError(f"{about}: {words}") from error


class GroupCommits:
    """Raises RenameError where the brokers don't answer."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._admin = AdminClient(dict(client))

    def members(self, group: str) -> int:
        """How many there are, whatever the group is doing."""
        # describe_consumer_groups may abort the process when brokers go away (librdkafka #4605)
        with kafka_failures(f"the members of {group}"):
            found: list[Any] = self._admin.list_groups(group, timeout=ANSWER_S)
        return sum(len(one.members) for one in found)

    def read(self, group: str) -> Commits:
        """All that the group has committed. A transaction that is still open with commits in it is an error."""
        about = f"the commits of {group} (a transaction that a killed process has left open hides them up to 20 s)"
        with kafka_failures(about):
            commits = group_commits(self._client, group, stable=True, strict=True, timeout_s=ANSWER_S)
        return {TopicPartition(one.topic, one.partition): (one.offset, one.metadata or "") for one in commits}

    def write(self, group: str, commits: Commits) -> None:
        """Write commits of the group; where this fails, some may be written. Brokers refuse it while the group has
        members. A source that was deleted has nothing left to take over, and is left out.
        """
        if not commits:
            return
        with kafka_failures(f"committing for {group}"):
            for some in commits_of(commits):
                request = [ConsumerGroupTopicPartitions(group, some)]
                answer = self._admin.alter_consumer_group_offsets(request, request_timeout=ANSWER_S)[group]
                for one in answer.result(ANSWER_S + 1).topic_partitions:
                    if one.error is not None and one.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise KafkaException(one.error)
