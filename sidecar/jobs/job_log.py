"""A topic of jobs: all plans and how far they have come, read by every replica.

Partition 0, compacted. Keys are `<plan id>/plan`, `/progress` and `/abort`, values JSON. Plans and aborts are written
by the process that was asked; a progress only within the transactions of the process that does the work, so that a
process that was taken over can't write one.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from sidecar.generation import refusal
from sidecar.jobs.job import AnyJob, Form, PlanHead
from sidecar.jobs.reader import ANSWER_S, PASSING, READER, LogUnavailable

PARTITION: Final = 0
POLL_S: Final = 0.2
WRITE_S: Final = 15.0
# Followed for ever, and nearly always silent: few requests, and still the end is seen soon after a transaction's.
_IDLE: Final = {"fetch.wait.max.ms": "100"}
CATCH_UP_S: Final = 30.0  # longer than a transaction that somebody left open can hold up readers

log = logging.getLogger("tickover.jobs")


def progress_key(plan_id: str) -> bytes:
    """The key of a plan's progress."""
    return f"{plan_id}/progress".encode()


class JobLog(Generic[AnyJob]):
    """Follows the topic in a thread of its own. Methods raise LogUnavailable."""

    def __init__(self, client: Mapping[str, Any], topic: str, form: Form[AnyJob]) -> None:
        self.topic = topic
        self._form = form
        self._client = client
        self._jobs: dict[str, AnyJob] = {}
        self._read_up_to = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="job-log", daemon=True)
        self._producer: Producer | None = None
        self._writing = threading.Lock()

    def start(self) -> None:
        """Twice is harmless."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self) -> None:
        """Twice is harmless."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(WRITE_S)

    def all(self) -> dict[str, AnyJob]:
        """Every job by its plan's id, as far as this process has read."""
        with self._changed:
            return dict(self._jobs)

    def get(self, plan_id: str) -> AnyJob | None:
        with self._changed:
            return self._jobs.get(plan_id)

    def write_plan(self, plan: PlanHead) -> AnyJob:
        """Returns when this process has read it back."""
        self._write(f"{plan.id}/plan".encode(), plan.model_dump_json().encode())
        job = self.get(plan.id)
        if job is None:
            raise LogUnavailable("the plan could not be read back")
        return job

    def write_abort(self, plan_id: str, author: str) -> None:
        """Ask whoever works on it to end."""
        self._write(f"{plan_id}/abort".encode(), json.dumps({"author": author}).encode())

    def catch_up(self) -> None:
        """Wait until everything that is in the topic now has been read; what is in open transactions, too."""
        anyone = Consumer({**self._client, **READER, "isolation.level": "read_uncommitted", "group.id": self.topic})
        try:
            _, end = anyone.get_watermark_offsets(TopicPartition(self.topic, PARTITION), timeout=ANSWER_S)
        except KafkaException as error:
            raise LogUnavailable(error.args[0].str()) from None
        finally:
            anyone.close()
        self._wait(lambda: self._read_up_to >= end)

    def _write(self, key: bytes, value: bytes) -> None:
        offsets: list[int] = []
        problems: list[str] = []

        def report(error: KafkaError | None, message: Any) -> None:
            refused = refusal(error, message)
            if refused is None:
                offsets.append(message.offset())
            else:
                problems.append(refused.str())

        with self._writing:
            if self._producer is None:
                self._producer = Producer({**self._client, "enable.idempotence": "true", "message.timeout.ms": "10000"})
            try:
                self._producer.produce(self.topic, value, key, PARTITION, on_delivery=report)
                self._producer.flush(WRITE_S)
            except (KafkaException, BufferError) as error:
                raise LogUnavailable(f"{self.topic} can't be written: {error}") from None
        if not offsets:
            raise LogUnavailable(f"{self.topic} can't be written: {''.join(problems) or 'no answer'}")
        self._wait(lambda: self._read_up_to > offsets[0])

    def _wait(self, true: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: true() or self._stopping.is_set(), CATCH_UP_S) or not true():
                raise LogUnavailable(f"{self.topic} can't be read to its end")

    def _follow(self) -> None:
        """Read for ever. A consumer that fails is made anew; what was read stays."""
        while not self._stopping.is_set():
            consumer = Consumer({**self._client, **READER, **_IDLE, "group.id": self.topic})
            try:
                consumer.assign([TopicPartition(self.topic, PARTITION, self._read_up_to)])
                while not self._stopping.is_set():
                    for message in consumer.consume(500, POLL_S):
                        self._take(message)
            except KafkaException as error:
                log.warning("reading jobs", extra={"topic": self.topic, "error": error.args[0].str()})
                self._stopping.wait(POLL_S)
            finally:
                consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() not in PASSING:
                raise KafkaException(error)
            return
        with self._changed:
            if error is None:
                self._apply(message.key() or b"", message.value() or b"")
            self._read_up_to = max(self._read_up_to, message.offset() + (1 if error is None else 0))
            self._changed.notify_all()

    def _apply(self, key: bytes, value: bytes) -> None:
        """Garbage, and what a newer version wrote, is passed over."""
        plan_id, _, kind = key.decode(errors="replace").rpartition("/")
        job = self._jobs.get(plan_id)
        if kind == "plan" and job is None:
            fresh = self._form.planned(value)
            fresh = fresh if fresh is not None and fresh.plan.id == plan_id else None
        elif kind == "progress" and job is not None:
            fresh = self._form.progressed(job, value)
        elif kind == "abort" and job is not None:
            fresh = self._form.aborted(job, _author(value))
        else:
            fresh = None
        if fresh is not None:
            self._jobs[plan_id] = fresh

    def now_ms(self) -> int:
        """This machine's clock, by which leases are judged."""
        return time.time_ns() // 1_000_000


def _author(value: bytes) -> str:
    try:
        author = json.loads(value)["author"]
    except (ValueError, KeyError, TypeError):
        return "?"
    return author if isinstance(author, str) else "?"
