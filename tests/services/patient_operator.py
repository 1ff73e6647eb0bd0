"""Somebody who governs over REST, whatever fails meanwhile: asks again, and elsewhere, until there is an answer."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol

import httpx
from confluent_kafka import KafkaException, Message

from tests.services.clients import producer
from tests.services.kafka import Sent
from tests.services.sidecar_process import Sidecar
from tests.services.site import Site

PAUSE_S: Final = 0.3
FLUSH_S: Final = 0.2
NOT_NOW: Final = frozenset({httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})

Kind = Literal["lost", "early", "changed", "repeated"]


class SceneOver(Exception):
    """Nobody waits for it any more."""


class Findings:
    """Faults, in the words of `oracle.py`, and how much was judged."""

    def __init__(self) -> None:
        self.sent = self.arrived = 0
        self.counts: Counter[Kind] = Counter()
        self.faults: list[str] = []

    def note(self, kind: Kind, words: str, count: int = 1) -> None:
        """One more; `count` 0: none."""
        if count:
            self.counts[kind] += count
            self.faults.append(f"{kind}: {words}")


class Part(Protocol):
    """One thing that is governed: `work` until it is quiet, and at least once."""

    word: str  # where it stands; another one as long as it gets on
    busy: bool  # in the middle of a run

    def work(self) -> None: ...

    def judge(self, findings: Findings) -> None: ...


class Operator:
    """Asks the processes of a site; for any thread. `over` ends whoever waits, `quiet` says to begin nothing new."""

    def __init__(self, site: Site, sidecars: Sequence[Sidecar], seed: int) -> None:
        self.site = site
        self.quiet = threading.Event()
        self.over = threading.Event()
        self._sidecars = sidecars
        self._random = random.Random(seed)

    def ask(self, method: str, path: str, *wanted: int, **options: Any) -> httpx.Response:
        """The first answer with a status that is wanted; who is away, or says not now, is asked again."""
        while True:
            for sidecar in self._random.sample(self._sidecars, len(self._sidecars)):
                if self.over.is_set():
                    raise SceneOver
                try:
                    answer = sidecar.call(method, path, **options)
                except httpx.TransportError:
                    continue
                if answer.status_code in wanted:
                    return answer
                assert answer.status_code in NOT_NOW, f"{method} {path}: {answer.status_code} {answer.text}"
            self.pause()

    def pause(self) -> None:
        """Wait a little before looking again."""
        if self.over.wait(PAUSE_S):
            raise SceneOver

    def until(self, true: Callable[[], bool]) -> None:
        """Until it is so, as long as the scene lasts."""
        while not true():
            self.pause()

    def send(self, role: str, records: Sequence[Sent]) -> list[Message]:
        """Returns when Kafka has them all; reports in order."""
        reports: list[Message] = []

        def report(error: object, message: Message) -> None:
            assert error is None, error
            reports.append(message)

        sender = producer(self.site.kafka.bootstrap)
        topic = self.site.name(role)
        for one in records:
            sender.produce(topic, one.value, one.key, one.partition, report, None, one.timestamp_ms, list(one.headers))
        while len(sender):
            if self.over.is_set():
                raise SceneOver
            sender.flush(FLUSH_S)
        order = {(one.value, one.key): number for number, one in enumerate(records)}
        return sorted(reports, key=lambda message: order[message.value(), message.key()])

    def committed(self, role: str) -> list[Message]:
        """All that readers see in a topic; while the brokers are away it is asked again."""
        while True:
            try:
                return self.site.kafka.read_all(self.site.name(role))
            except (KafkaException, TimeoutError):
                self.pause()
