"""Opening a log: whatever was going on when it was last written, what is there afterwards is whole batches in order.

Every segment's end is found from its last index entry on. Below the recovery point nothing is checked, above it every
CRC is; at the first batch that is cut or changed the log ends. A log that was closed has its recovery point at its end.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.log.checked_file import TEMPORARY
from broker.log.config import LogConfig
from broker.log.log import Log
from broker.log.segment import CLEANED_SUFFIX, LOG_SUFFIX, LogSegment
from broker.log.state import Checkpoint
from purgatory.partition.replica_log import ReplicaLog

_log = logging.getLogger(__name__)


def open_replica_log(directory: Path, config: LogConfig, clock: Callable[[], float]) -> tuple[Log, ReplicaLog]:
    """A log and what replication sees of it, as they were when last written down. A new one gets its directory with its
    first record."""
    if directory.exists() and any(directory.iterdir()):
        return _open_known(directory, config, clock)
    log = Log(directory, config, clock, [LogSegment(directory, 0, config, is_new=True)], Checkpoint())
    replica = ReplicaLog(log)
    replica.epochs = log.state.epochs
    replica.transactions = log.state.transactions
    return log, replica


def _open_known(directory: Path, config: LogConfig, clock: Callable[[], float]) -> tuple[Log, ReplicaLog]:
    for left in (*directory.glob(f"*{TEMPORARY}"), *directory.glob(f"*{CLEANED_SUFFIX}")):
        left.unlink()
    checkpoint = Checkpoint.read(directory)
    segments = _recover(directory, config, checkpoint)
    log = Log(directory, config, clock, segments, checkpoint)
    if log.log_end.offset < checkpoint.log_start_offset:  # what was deleted may not be appended again
        log.truncate_fully_and_start_at(checkpoint.log_start_offset)
        checkpoint, segments = log.checkpoint, log.segments
    end = log.log_end.offset
    start = min(max(checkpoint.log_start_offset, segments[0].base_offset), end)
    checkpoint.log_start_offset, checkpoint.recovery_point = start, min(checkpoint.recovery_point, end)
    epochs = log.state.epochs
    for info in log.state.rebuild(segments, end):
        epochs.assign(info.leader_epoch, info.first_offset)
    epochs.truncate_from_end(end)
    epochs.truncate_from_start(start)
    replica = ReplicaLog(log, start, end)
    replica.epochs = epochs
    replica.transactions = log.state.transactions
    replica.update_high_watermark(checkpoint.high_watermark)
    return log, replica


def start_over_at(log: Log, replica: ReplicaLog, offset: int) -> None:
    """A follower forgets all it has and begins at its leader's log start."""
    replica.log_start_offset = offset
    replica.log_end = log.truncate_fully_and_start_at(offset)
    replica.epochs.truncate_from_end(-1)
    replica.update_high_watermark(offset)


def _recover(directory: Path, config: LogConfig, checkpoint: Checkpoint) -> Sequence[LogSegment]:
    bases = sorted(int(path.stem) for path in directory.glob(f"*{LOG_SUFFIX}"))
    segments: list[LogSegment] = []
    is_cut = False
    for base in bases or [checkpoint.log_start_offset]:
        segment = LogSegment(directory, base, config, is_new=not bases)
        is_cut = is_cut or (bool(segments) and _is_hole(segments[-1].next_offset, base, config, checkpoint))
        if is_cut or (segments and base < segments[-1].next_offset):
            _log.warning("dropped segment %d: %s", base, "the log ends before it" if is_cut else "merged into another")
            segment.delete()
            continue
        if segments and not segments[-1].is_sealed:
            segments[-1].seal()
        is_cut = segment.recover(checkpoint.recovery_point)
        if is_cut:
            _log.warning("cut segment %d at offset %d: a batch was not whole", base, segment.next_offset)
        segments.append(segment)
    segments[-1].unseal()
    return segments


def _is_hole(end: int, base: int, config: LogConfig, checkpoint: Checkpoint) -> bool:
    """Whether a segment has lost its last batches without a trace. Compaction leaves such gaps too."""
    may_be_lost = end >= checkpoint.recovery_point and end >= checkpoint.cleaned_to
    return end < base and may_be_lost and not config.is_compacted
