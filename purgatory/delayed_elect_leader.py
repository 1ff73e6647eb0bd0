"""An election that waits until this broker has heard of the leaders. Kafka had it with ZooKeeper."""

from collections.abc import Callable, Mapping

from purgatory.delayed_operation import DelayedOperation
from purgatory.errors import Errors
from purgatory.log_offsets import TopicPartition
from purgatory.versions import LATEST, KafkaVersion


def decide_elect_leader(
    expected: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, int]
) -> frozenset[TopicPartition]:
    """The partitions whose expected leader is not yet known here."""
    return frozenset(key for key, leader in expected.items() if leaders.get(key) != leader)


class DelayedElectLeader(DelayedOperation):
    """`expected` leader by partition; `results` are those decided already; `look` gives the leaders known here."""

    def __init__(
        self,
        delay_ms: int,
        expected: Mapping[TopicPartition, int],
        results: Mapping[TopicPartition, Errors],
        look: Callable[[], Mapping[TopicPartition, int]],
        respond: Callable[[Mapping[TopicPartition, Errors]], None],
        *,
        version: KafkaVersion = LATEST,
    ) -> None:
        super().__init__(max(delay_ms, 0), version=version)  # until a deadline that may have passed
        self._expected = dict(expected)
        self._results = dict(results)
        self._look = look
        self._respond = respond

    def try_complete(self) -> bool:
        """Is every leader known?"""
        return not self._update() and self.force_complete()

    def on_complete(self) -> None:
        """Answer; whose leader is not known has timed out."""
        self._update()
        self._respond({**self._results, **dict.fromkeys(self._expected, Errors.REQUEST_TIMED_OUT)})

    def on_expiration(self) -> None:
        """The answer says it."""

    def _update(self) -> frozenset[TopicPartition]:
        waiting = decide_elect_leader(self._expected, self._look())
        for key in set(self._expected) - waiting:
            del self._expected[key]
            self._results[key] = Errors.NONE
        return waiting
