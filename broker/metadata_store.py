"""The cluster's metadata in a file: topics, partitions and who was there, as the controller last left them."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from broker.checked_file import read_json, write_json
from broker.cluster_metadata import NO_LEADER, BrokerRegistration, ClusterMetadata, PartitionRegistration, Topic
from broker.quorum import Quorum

FILE: Final = "metadata.json"


def save_metadata(metadata: ClusterMetadata, directory: Path) -> None:
    """Durable when this returns."""
    content = {
        "cluster_id": metadata.cluster_id,
        "next_producer_id": metadata.next_producer_id,
        "quorum": {"epoch": metadata.quorum.epoch, "end_offset": metadata.quorum.end_offset},
        "brokers": [asdict(broker) for broker in metadata.brokers.values()],
        "topics": [asdict(topic) for topic in metadata.topics.values()],
    }
    write_json(directory / FILE, content)


def load_metadata(directory: Path) -> ClusterMetadata | None:
    """As it was saved, except that nobody is there yet and nobody leads. None: it never was, or it is damaged."""
    content = read_json(directory / FILE)
    if content is None:
        return None
    metadata = ClusterMetadata(content["cluster_id"])
    metadata.next_producer_id = content["next_producer_id"]
    metadata.quorum = Quorum(**content.get("quorum", {}))
    for row in content["brokers"]:
        broker = BrokerRegistration(**{**row, "is_fenced": True})
        metadata.brokers[broker.broker_id] = broker
    for row in content["topics"]:
        partitions = [_partition(one) for one in row["partitions"]]
        topic = Topic(row["name"], row["topic_id"], row["config"], partitions)
        metadata.topics[topic.name] = topic
        metadata.topic_names[topic.topic_id] = topic.name
    return metadata


def _partition(row: dict[str, Any]) -> PartitionRegistration:
    lists = ("replicas", "isr", "adding", "removing")
    return PartitionRegistration(**{**row, **{name: tuple(row[name]) for name in lists}, "leader": NO_LEADER})
