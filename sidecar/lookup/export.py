"""Export of records in Redis as JSON lines: a witness beside the ledger, for `tickover pipeline reconcile --export`.

Redis is read directly and no engine is asked, so what an engine only believes to be there doesn't show.

    {"topic": "reminders", "partition": 0, "offset": 17, "due_ms": 1763720000000, "target": "mail",
     "policy": "reminders@1"}
    ...
    {"export": {"ledger": "tickover.tickover.ledger", "began": {"0": 4711}, "ended": {"0": 4715}, "records": 1}}

The last line says that the file is whole, and where the ledger ended, by partition, before and after Redis was read.
What Redis had acknowledged by `began`, and nothing has settled by `ended`, must be in the file.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from policies.kafka_clients import Consumer
from sidecar.kafka.client_settings import READER
from sidecar.kafka.topic_follower import ANSWER_S, LogUnavailable
from sidecar.lookup.redis import HeldOverflow
from sidecar.model.record import Position, TopicPartition
from sidecar.overflow.connection import Client, failures, lane_of
from sidecar.overflow.interface import OverflowLoss
from sidecar.overflow.keys import pattern_of_hw, pattern_of_levels
from sidecar.overflow.signing import UNSIGNED, Signing

KEYS_PER_SCAN: Final = 1_000
_BEFORE_ALL: Final = Position(-1, -1)


def ledger_ends(client: Mapping[str, Any], topic: str) -> dict[str, int]:
    """By partition (as text) where what is committed ends. Raises LogUnavailable."""
    consumer = Consumer({**client, **READER, "group.id": f"{topic}.export"})
    try:
        found = consumer.list_topics(topic, ANSWER_S).topics[topic]
        if found.error is not None:
            raise LogUnavailable(f"the ledger {topic}: {found.error.str()}")
        places = [ClientPartition(topic, partition) for partition in found.partitions]
        return {str(partition): end for (_, partition), (_, end) in consumer.log_bounds(places, ANSWER_S).items()}
    except KafkaException as error:
        raise LogUnavailable(f"the ledger {topic}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def lanes_in(client: Client, group: str) -> list[TopicPartition]:
    """Every lane of the group of which Redis has anything. Raises OverflowUnavailable, and OverflowLoss where what
    counts a lane's blocks has gone.
    """

    def found(pattern: str) -> set[TopicPartition]:
        with failures():
            keys = client.scan_iter(match=pattern, count=KEYS_PER_SCAN)
            return {lane_of(key.decode()) for key in keys}

    kept = found(pattern_of_levels(group))  # first: a lane that comes meanwhile is no loss
    lanes = found(pattern_of_hw(group))
    for lane in sorted(kept - lanes):
        raise OverflowLoss(lane, 0, "the number of its change blocks has gone")
    return sorted(lanes)


def exported(
    client: Client, group: str, ledger: str, ends: Callable[[], Mapping[str, int]], signing: Signing = UNSIGNED
) -> Iterator[dict[str, Any]]:
    """The lines, lane by lane in order of due time; `ends` says where the ledger ends just now.

    Raises OverflowUnavailable, OverflowLoss, and what `ends` raises.
    """
    began = ends()
    overflow = HeldOverflow(client, group, lambda: None, signing)
    records = 0
    for lane in lanes_in(client, group):
        last = _BEFORE_ALL
        for position, held in overflow.stream(lane, _BEFORE_ALL):
            # Two levels may have the same record while it is moved from one to the other.
            if held is None or position == last:
                continue
            last = position
            records += 1
            yield {
                **lane._asdict(),
                "offset": held.offset,
                "due_ms": held.due_ms,
                "target": held.target,
                "policy": held.policy,
            }
    yield {"export": {"ledger": ledger, "began": dict(began), "ended": dict(ends()), "records": records}}
