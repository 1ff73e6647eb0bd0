"""Noticing that Redis has lost something: fewer change blocks than it acknowledged, or a key that has gone."""

from collections.abc import Sequence

from sidecar.model.record import TopicPartition
from sidecar.overflow.interface import OverflowLoss


def raise_if_lost(lane: TopicPartition, hw: int, keys: Sequence[str], acknowledged: int, number: int = 0) -> None:
    """Raises OverflowLoss when Redis has fewer change blocks than it acknowledged, or lacks one of a script's keys."""
    if hw < 0:
        raise OverflowLoss(lane, 0, f"the key {keys[-hw - 1]} has gone: evicted, deleted or expired", number)
    if hw < acknowledged:
        detail = f"blocks up to {acknowledged} were acknowledged, only those up to {hw} are there"
        raise OverflowLoss(lane, hw, detail)
