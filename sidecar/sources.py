"""Which topics are consumed: those of the settings or those that the policies match, as far as they exist.

Topics come and go and policies change, so housekeeping looks again every few seconds; the engine subscribes.
"""

import logging
from collections.abc import Callable
from typing import Final

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from policies.table import PolicyTable
from sidecar.assembly import Machinery
from sidecar.config import Settings
from sidecar.retention import longest_delay_ms
from sidecar.topics import matching_sources

log = logging.getLogger(__name__)

ANSWER_S: Final = 10.0


class Sources:
    """The subscription of one process. Used by one thread at a time: at start, then by housekeeping."""

    def __init__(
        self,
        settings: Settings,
        own_topics: frozenset[str],
        admin: AdminClient,
        machinery: Machinery,
        table: Callable[[], PolicyTable],
    ) -> None:
        self._settings = settings
        self._own = own_topics
        self._admin = admin
        self._machinery = machinery
        self._table = table
        self._subscribed: list[str] = []

    def look(self) -> None:
        """Subscribe to what is there now, if it differs from before."""
        existing = self._admin.list_topics(timeout=ANSWER_S).topics
        self._machinery.publisher.kafka_problem = ""
        patterns = self._settings.sources or sorted(
            {glob for version in self._table().policies.values() for glob in version.policy.match.topics}
        )
        found = matching_sources(existing, patterns, self._own)
        if found == self._subscribed:
            return
        log.info("sources", extra={"topics": found})
        intake = self._machinery.intake
        self._machinery.engine.submit(lambda _: intake.subscribe(found)).result(ANSWER_S)
        self._subscribed = found

    def check_retention(self) -> None:
        """Say which sources keep their records for less than what may be held: Redis is then not expendable."""
        longest_ms = longest_delay_ms(self._table())
        if not self._subscribed or not longest_ms:
            return
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in self._subscribed]
        for resource, future in self._admin.describe_configs(resources, request_timeout=ANSWER_S).items():
            retention_ms = int(future.result(ANSWER_S)["retention.ms"].value)
            if 0 <= retention_ms < longest_ms:
                log.warning(
                    "a source keeps its records for less time than a policy may hold them: what is held longer "
                    "can't be put back if Redis loses it; raise retention.ms",
                    extra={"topic": resource.name, "retention_ms": retention_ms, "longest_ms": longest_ms},
                )
