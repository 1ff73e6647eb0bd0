"""Versions of Kafka between which delayed operations behave differently."""

from enum import IntEnum


class KafkaVersion(IntEnum):
    """The first version of each behaviour. Compare with `>=`."""

    V3_6 = 306
    V3_7 = 307  # the high watermark stands still under min ISR, and min ISR is at most the number of replicas
    V4_0 = 400  # an operation that completes while it is being watched is not watched under its other keys
    V4_1 = 401  # an operation completes under its own lock; before, by compare-and-set

    @property
    def has_strict_min_isr(self) -> bool:
        """KAFKA-15583."""
        return self >= KafkaVersion.V3_7

    @property
    def stops_watching_when_completed(self) -> bool:
        """KAFKA-18027."""
        return self >= KafkaVersion.V4_0

    @property
    def completes_under_lock(self) -> bool:
        """KAFKA-19312."""
        return self >= KafkaVersion.V4_1


LATEST = KafkaVersion.V4_1
