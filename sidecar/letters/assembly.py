"""The parts that handle dead letters, made from the settings."""

from collections.abc import Callable, Mapping
from typing import Any

from policies.table import PolicyTable
from sidecar.config import Settings
from sidecar.letters.browsing import Limits
from sidecar.letters.letter_log import KafkaLetterLog
from sidecar.letters.masking import Masking
from sidecar.letters.reading import Reading, Rules


def reading_of(settings: Settings, client: Mapping[str, Any], table: Callable[[], PolicyTable]) -> Reading:
    """What REST reads dead letters with."""
    asked = settings.dead_letters
    limits = Limits(asked.scan_records, asked.scan_time_ms / 1_000)
    rules = Rules(asked.topics, settings.quarantine.topic, limits, Masking(asked.mask))
    return Reading(lambda: KafkaLetterLog(client, settings.group), table, rules)
