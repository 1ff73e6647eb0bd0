"""All logs of one broker: opened, looked after, closed. What calls it from time to time is the broker."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.log.checked_file import sync_directory
from broker.log.cleaner import clean_log
from broker.log.config import LogConfig
from broker.log.loading import open_replica_log
from broker.log.log import Log
from broker.log.retention import apply_retention
from purgatory.errors import ApiError, Errors
from purgatory.log_offsets import TopicPartition
from purgatory.partition.replica_log import ReplicaLog

TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
DELETED_SUFFIX: Final = ".deleted"
CLOSING_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class HostedLog:
    """A log's files and what replication sees of them."""

    log: Log
    replica: ReplicaLog


class LogManager:
    """The logs below one directory. `clock` gives wall-clock time in ms. One thread."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, HostedLog] = {}
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"*{DELETED_SUFFIX}"):
            shutil.rmtree(left)

    def open(self, key: TopicPartition, config: LogConfig) -> HostedLog:
        """A partition's log, new or as it was left. INVALID_TOPIC_EXCEPTION if its topic can't have that name."""
        hosted = HostedLog(*open_replica_log(self._path(key), config, self._clock))
        self.logs[key] = hosted
        return hosted

    def delete(self, keys: Iterable[TopicPartition]) -> None:
        """Delete logs whose topic was deleted, or that are hosted elsewhere. Answers under way keep their bytes."""
        targets = []
        for key in keys:
            del self.logs[key]
            path = self._path(key)
            if path.exists():  # it had a record
                targets.append(path.rename(path.with_name(f"{path.name}{DELETED_SUFFIX}")))
        if targets:
            sync_directory(self.directory)
        for target in targets:
            shutil.rmtree(target)

    def looking_after(self) -> Iterator[None]:
        """Delete what is too old or too much, compact, and write the high watermarks down, one log at each step. Kafka
        does the first every five minutes, the second every 15 seconds, the third every five."""
        for hosted in self._each():
            log, replica, now_ms = hosted.log, hosted.replica, int(self._clock())
            apply_retention(log, replica, now_ms)
            clean_log(log, replica.last_stable.offset, now_ms)
            log.write_checkpoint(replica.high_watermark.offset)
            yield

    def flushing(self) -> Iterator[None]:
        """Make the logs survive a loss of power, one at each step. Those that have nothing new cost nothing."""
        for hosted in self._each():
            if hosted.log.checkpoint.recovery_point < hosted.log.log_end.offset:
                hosted.log.flush()
            yield

    def _each(self) -> Iterator[HostedLog]:
        """All logs; between two of them others may come and go."""
        for key in list(self.logs):
            hosted = self.logs.get(key)
            if hosted is not None:
                yield hosted

    def close(self) -> None:
        """Close all: the next start reads no batch. Twice is harmless.

        Several at a time: what takes long is to flush them to disk, which does many together.
        """
        hosted, self.logs = list(self.logs.values()), {}
        with ThreadPoolExecutor(CLOSING_THREADS) as threads:
            for _ in threads.map(lambda one: one.log.close(one.replica.high_watermark.offset), hosted):
                pass

    def _path(self, key: TopicPartition) -> Path:
        if not TOPIC_NAME.fullmatch(key.topic):
            raise ApiError(Errors.INVALID_TOPIC_EXCEPTION, "a topic's name has letters, digits, '.', '_', '-'")
        return self.directory / f"{key.topic}-{key.partition}"
