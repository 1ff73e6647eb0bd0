"""One deployment in a test run: a group of its own with its topics and policies, and the sidecars that serve it."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from confluent_kafka import Message
from redis import Redis

from sidecar.embedded.child import free_port
from sidecar.overflow.keys import pattern_of_hw
from tests.services.kafka import Headers, Kafka
from tests.services.sidecar_process import Sidecar

HORIZON = "1s"  # short, so that a delay of two seconds goes through the overflow
SHUTDOWN_TIMEOUT = "60s"  # long: what a busy machine needs for a clean stop is not what is judged


class Site:
    """Topics are named by their role; nothing is shared with other sites but the servers."""

    def __init__(self, kafka: Kafka, redis_url: str, directory: Path) -> None:
        self.kafka = kafka
        self.redis_url = redis_url
        self.group = f"site-{uuid4().hex[:8]}"
        self.quarantine = f"{self.group}.quarantine"
        self._directory = directory / self.group
        self._directory.mkdir()
        self.policies_file = self._directory / "policies.yaml"
        self._cleanup = ExitStack()

    def name(self, role: str) -> str:
        """The topic of this role."""
        return f"{self.group}-{role}"

    def topic(self, role: str, partitions: int = 1, **config: object) -> str:
        """Create the topic of this role; by default the broker stamps records, so that early ones show."""
        settings: dict[str, object] = {"message_timestamp_type": "CreateTime", **config}
        return self.kafka.create_topic(self.name(role), partitions, **settings)

    def target(self, role: str, partitions: int = 1) -> str:
        """Create a topic whose timestamps are the broker's append times: what is early shows there."""
        return self.kafka.create_topic(self.name(role), partitions, message_timestamp_type="LogAppendTime")

    def policies(self, text: str) -> None:
        """Write the policies file; `~role` stands for the name of a topic."""
        self.policies_file.write_text(text.replace("~", f"{self.group}-"))

    def sidecar(self, instance: str = "", **settings: str) -> Sidecar:
        """A sidecar of this group, not started; it is killed at the end at the latest."""
        log = self._directory / f"sidecar-{instance or uuid4().hex[:8]}.log"
        environment = {
            "GROUP": self.group,
            "INSTANCE_ID": instance,
            "HORIZON": HORIZON,
            "SHUTDOWN_TIMEOUT": SHUTDOWN_TIMEOUT,
            "KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap,
            "REDIS__URL": self.redis_url,
            "POLICIES__TOPIC": f"{self.group}.policies",
            "POLICIES__FILE": str(self.policies_file),
            "QUARANTINE__TOPIC": self.quarantine,
            "LEDGER__PARTITIONS": "4",
            "DATA_DIR": str(self._directory / "data"),
        } | settings
        sidecar = Sidecar(environment, free_port(), log)
        self._cleanup.callback(sidecar.kill)
        return sidecar

    def send(
        self,
        topic: str,
        headers: Headers = (),
        value: bytes | None = b"value",
        key: bytes | None = b"key",
        timestamp_ms: int = 0,
    ) -> Message:
        """Produce one record to partition 0; returns its report."""
        [report] = self.kafka.produce(topic, [(key, value, headers, timestamp_ms, 0)])
        return report

    def is_in_redis(self) -> bool:
        """Whether anything was put there: what is on its way there counts as held in the overflow, too."""
        with Redis.from_url(self.redis_url, protocol=2) as client:
            return any(client.scan_iter(match=pattern_of_hw(self.group), count=1_000))

    def wipe_redis(self) -> None:
        """Redis forgets everything about this site, and about no other, at one instant."""
        with Redis.from_url(self.redis_url, protocol=2) as client:
            if keys := list(client.scan_iter(match=f"{{{self.group}:*", count=1_000)):
                client.unlink(*keys)

    def close(self) -> None:
        """End every sidecar."""
        self._cleanup.close()


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """A record's headers as they are read: a list, never null."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def due_of(message: Message) -> int:
    """Epoch milliseconds at which an emitted record was due."""
    return int(dict(headers_of(message))["tickover-due"] or b"-1")


def place(report: Message) -> bytes:
    """`topic/partition/offset`, as in the headers."""
    return f"{report.topic()}/{report.partition()}/{report.offset()}".encode()


def own_headers(report: Message, due_ms: int, policy: str, *more: tuple[str, bytes]) -> list[Any]:
    """Headers that tickover writes on the record of this report when it is due."""
    return [
        ("tickover-origin", place(report)),
        ("tickover-due", str(due_ms).encode()),
        ("tickover-policy", policy.encode()),
        *more,
    ]
