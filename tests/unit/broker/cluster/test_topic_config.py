"""Meaning of a topic's settings to its logs."""

import pytest

from broker.cluster.topic_config import log_config
from broker.log.config import LONG_MAX, LogConfig


def middle(below: int) -> int:
    return below // 2


def test_without_settings_they_are_kafkas() -> None:
    config = log_config({}, middle)
    assert config == LogConfig(config.records)
    assert (config.index_interval_bytes, config.segment_jitter_ms, config.flush_messages) == (4096, 0, LONG_MAX)


@pytest.mark.parametrize(("policy", "expected"), [("delete", 5000), ("compact", 700), ("delete,compact", 700)])
def test_what_is_to_be_compacted_leaves_the_active_segment_in_time(policy: str, expected: int) -> None:
    given = {"cleanup.policy": policy, "segment.ms": "5000", "max.compaction.lag.ms": "700"}
    assert log_config(given, middle).segment_ms == expected
    assert log_config(given, middle).max_compaction_lag_ms == 700


@pytest.mark.parametrize(("jitter", "expected"), [("0", 0), ("100", 50), ("9000", 500)])
def test_logs_that_began_together_need_not_roll_together(jitter: str, expected: int) -> None:
    config = log_config({"segment.ms": "1000", "segment.jitter.ms": jitter}, middle)
    assert (config.segment_ms, config.segment_jitter_ms) == (1000, expected)
