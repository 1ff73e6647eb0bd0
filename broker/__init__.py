"""The reference broker: Kafka's record batches, and what is to speak its protocol. Never for production data."""

from broker.batch_validation import RecordRules, analyze_batch, check_produced, validate_batch
from broker.control_records import build_end_marker, read_end_marker

__all__ = [
    "RecordRules",
    "analyze_batch",
    "build_end_marker",
    "check_produced",
    "read_end_marker",
    "validate_batch",
]
