"""The cluster's metadata in two files: all of it as it once was, and each change since.

    metadata.json          brokers, topics, partitions, and the number of the journal that goes on from there
    metadata-7.journal     entries: size (4 bytes), CRC-32C (4 bytes), JSON. One that is cut or damaged ends the journal

A change costs what it changes, however many topics there are, and those of one request are flushed to disk once.
Everything is written anew at the start, at the end, and when a journal has become long.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from json import dumps, loads
from pathlib import Path
from typing import Any, BinaryIO, Final

from crc32c import crc32c

from broker.cluster.cluster_metadata import (
    NO_LEADER,
    BrokerRegistration,
    ClusterMetadata,
    MetadataChanges,
    PartitionRegistration,
    Topic,
)
from broker.cluster.quorum import Quorum
from broker.log.checked_file import read_json, sync_directory, write_json

FILE: Final = "metadata.json"
JOURNAL_BYTES_MAX: Final = 64 << 20
NUMBER_BYTES: Final = 4
PARTITION_FIELDS: Final = tuple(field.name for field in fields(PartitionRegistration))


class MetadataStore:
    """The files in one directory. `journal_bytes_max` is how long a journal may become."""

    def __init__(self, directory: Path, journal_bytes_max: int = JOURNAL_BYTES_MAX) -> None:
        self._directory = directory
        self._journal_bytes_max = journal_bytes_max
        self._number = 0
        self._journal: BinaryIO | None = None
        self._is_synced = True

    def load(self) -> ClusterMetadata | None:
        """As it was saved, except that nobody is there yet and nobody leads. None: it never was, or it is damaged."""
        content = read_json(self._directory / FILE)
        if content is None:
            return None
        metadata = ClusterMetadata(content["cluster_id"])
        _take(metadata, content)
        self._number = content.get("journal", 0)
        for change in _entries(self._path(self._number)):
            _take(metadata, change)
        return metadata

    def append(self, metadata: ClusterMetadata, changes: MetadataChanges) -> None:
        """Write down what has changed: it survives the end of this process, and after `sync` a loss of power."""
        if self._journal is None or self._journal.tell() > self._journal_bytes_max:
            self.save(metadata)
            return
        topics = {name: metadata.topics.get(name) for name in sorted(changes.topics)}
        entry = {
            **_small(metadata),
            "topics": [_topic_row(topic) for topic in topics.values() if topic is not None],
            "gone": [name for name, topic in topics.items() if topic is None],
            "partitions": [
                (key.topic, key.partition, _partition_row(partition))
                for key in sorted(changes.partitions)
                if key.topic not in topics and (partition := metadata.partition(key)) is not None
            ],
        }
        content = dumps(entry, separators=(",", ":")).encode()
        head = b"".join(number.to_bytes(NUMBER_BYTES, "big") for number in (len(content), crc32c(content)))
        self._is_synced = False
        try:
            self._journal.write(head + content)
            self._journal.flush()
        except OSError:
            self.close()  # whatever is there of the entry would end the journal: the next change writes everything
            raise

    def sync(self) -> None:
        """Make what was written survive a loss of power."""
        if self._journal is None or self._is_synced:
            return
        try:
            os.fdatasync(self._journal.fileno())
        except OSError:
            self.close()
            raise
        self._is_synced = True

    def save(self, metadata: ClusterMetadata) -> None:
        """Write all of it down, and begin a journal. Durable when this returns."""
        self.close()
        self._number += 1
        self._path(self._number).unlink(missing_ok=True)
        self._journal = self._path(self._number).open("ab")
        rows = [_topic_row(topic) for topic in metadata.topics.values()]
        content = {"cluster_id": metadata.cluster_id, "journal": self._number, **_small(metadata), "topics": rows}
        write_json(self._directory / FILE, content)
        for left in self._directory.glob(self._path("*").name):
            if left != self._path(self._number):
                left.unlink()
        sync_directory(self._directory)

    def close(self) -> None:
        """Twice is harmless."""
        journal, self._journal = self._journal, None
        if journal is not None:
            with contextlib.suppress(OSError):  # what could not be written was told
                journal.close()

    def _path(self, number: object) -> Path:
        return self._directory / f"metadata-{number}.journal"


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    data = b""
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
    position = 0
    while position + 2 * NUMBER_BYTES <= len(data):
        start = position + 2 * NUMBER_BYTES
        size = int.from_bytes(data[position : position + NUMBER_BYTES], "big")
        content = data[start : start + size]
        if len(content) < size or crc32c(content) != int.from_bytes(data[position + NUMBER_BYTES : start], "big"):
            return
        yield loads(content)
        position = start + size


def _take(metadata: ClusterMetadata, content: Mapping[str, Any]) -> None:
    metadata.next_producer_id = content["next_producer_id"]
    metadata.quorum = Quorum(**content.get("quorum", {}))
    metadata.broker_configs = content.get("broker_configs", {})
    for row in content["brokers"]:
        broker = BrokerRegistration(**{**row, "is_fenced": True})
        metadata.brokers[broker.broker_id] = broker
    for name in content.get("gone", ()):
        metadata.remove(name)
    for row in content["topics"]:
        metadata.remove(row["name"])
        partitions = [_partition(one) for one in row["partitions"]]
        metadata.add(Topic(row["name"], row["topic_id"], row["config"], partitions))
    for name, number, row in content.get("partitions", ()):
        metadata.topics[name].partitions[number] = _partition(row)


def _small(metadata: ClusterMetadata) -> dict[str, Any]:
    return {
        "next_producer_id": metadata.next_producer_id,
        "quorum": {"epoch": metadata.quorum.epoch, "end_offset": metadata.quorum.end_offset},
        "broker_configs": metadata.broker_configs,
        "brokers": [asdict(broker) for broker in metadata.brokers.values()],
    }


def _topic_row(topic: Topic) -> dict[str, Any]:
    rows = [_partition_row(partition) for partition in topic.partitions]
    return {"name": topic.name, "topic_id": topic.topic_id, "config": topic.config, "partitions": rows}


def _partition_row(partition: PartitionRegistration) -> Sequence[Any]:
    return [getattr(partition, name) for name in PARTITION_FIELDS]


def _partition(row: Mapping[str, Any] | Sequence[Any]) -> PartitionRegistration:
    """Before there was a journal it was written with names."""
    named = row if isinstance(row, Mapping) else dict(zip(PARTITION_FIELDS, row, strict=True))
    lists = {name: tuple(value) for name, value in named.items() if isinstance(value, list)}
    return PartitionRegistration(**{**named, **lists, "leader": NO_LEADER})
