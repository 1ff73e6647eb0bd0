"""The transactional producer of one job: what is sent and the progress that speaks of it become facts together.

Its transactional id is the plan's. Whoever makes one fences off the one before, also that of a process that was taken
for dead, and ends what it had left open.

Schedules write with it, too. Three others begin and end transactions, for a reason: the engine, which commits offsets
with its records and waits for nothing (`sidecar/kafka/transactions.py`); the copier of topics, which keeps times and
has to know at which offset each record of the copy is (`operations/renaming/topic_copy.py`); the pipeline, which shares
no client with the sidecar. After a failure nobody mends a sender: whoever has it closes it, begins another under the
same id, and reads what became of the last transaction.

Brokers that have no transactions are found out at the start, and asked again (`TransactionWatch`).
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException

from policies.kafka_clients import Producer
from sidecar.kafka.background import give_up
from sidecar.kafka.client_settings import sender_settings
from sidecar.kafka.errors import (
    OF_ONE_RECORD,
    OF_THE_TARGET,
    PURGED,
    SILENT_PARTITION,
    TAKEN_OVER,
    WITHOUT_TRANSACTIONS,
    delivery_error,
)
from sidecar.kafka.topic_follower import PARTITION
from sidecar.model.record import Headers
from sidecar.operations.jobs.job import ProgressHead, progress_key

ANSWER_S: Final = 15.0
LOOK_S: Final = 2.0  # to begin with an id: after so long the client is asked what it has heard, and goes on
ANY_PARTITION: Final = -1  # the key decides, as in Java
FULL_POLL_S: Final = 0.05
LOOK_AGAIN_S: Final = 60.0  # whether brokers have transactions
EXACTLY_ONCE: Final = "; nor does exactly_once, the guarantee of this process: set guarantee to at_least_once"

log = logging.getLogger("tickover.transactions")


class Sendable(Protocol):
    """A record to be sent."""

    @property
    def target(self) -> str: ...

    @property
    def partition(self) -> int:
        """-1: by key."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Headers: ...


class OutgoingRecord(NamedTuple):
    """A record as it is."""

    target: str
    key: bytes | None
    value: bytes | None
    headers: Headers = []  # noqa: RUF012 - of a tuple, which nobody changes
    partition: int = ANY_PARTITION


class Refused(Exception):
    """Nothing was sent: Kafka refuses some of the parcels, or their neighbours in a batch. `codes` by their index."""

    def __init__(self, codes: Mapping[int, int]) -> None:
        words = ", ".join(sorted({KafkaError(code).str() for code in codes.values()}))
        super().__init__(f"{len(codes)} refused: {words}")
        self.codes = codes


class TargetRefused(Exception):
    """Nothing was sent: a target is gone, or not ours to write to. `indexes` of the parcels that showed it."""

    def __init__(self, text: str, indexes: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.indexes = frozenset(indexes)


class TakenOver(Exception):
    """Somebody else works on this plan now."""


class ShipmentFailed(Exception):
    """Nobody knows whether it was sent: the progress says so, to whoever begins anew."""


class Unanswered(ShipmentFailed):
    """Nothing was sent: some partitions don't acknowledge in time. `indexes` of parcels, and behind them of facts."""

    def __init__(self, indexes: Iterable[int]) -> None:
        self.indexes = frozenset(indexes)
        super().__init__(f"Kafka has not acknowledged {len(self.indexes)} records in time")


class Unfinished(ShipmentFailed):
    """Nothing can be sent under this id yet: its last transaction is decided, and a partition can't be told of it."""


class NoTransactions(ShipmentFailed):
    """Nothing was sent: the brokers have no transactions."""

    def __init__(self, text: str) -> None:
        super().__init__(
            "these Kafka brokers have no transactions, and without them schedules, redrives and changes don't work; "
            f"use brokers that have them: {text}"
        )


class TransactionalSender:
    """One producer. `alone`: every record in a batch of its own, so that only the guilty are refused."""

    def __init__(self, client: Mapping[str, Any], transactional_id: str, topic: str, alone: bool = False) -> None:
        self.alone = alone
        self._topic = topic
        self._producer: Any = Producer(sender_settings(client, transactional_id, alone))

    def init(self, seconds: float = ANSWER_S * 2) -> None:
        """Fence off whoever came before. Raises ShipmentFailed, Unfinished, and soon NoTransactions."""
        deadline_s, is_unfinished = time.monotonic() + seconds, False
        while True:
            try:
                self._producer.init_transactions(min(LOOK_S, max(deadline_s - time.monotonic(), 0.0)))
                return
            except KafkaException as error:
                failure = error.args[0]
            if failure.code() in WITHOUT_TRANSACTIONS:
                raise NoTransactions(failure.str())
            is_unfinished |= failure.code() == KafkaError.CONCURRENT_TRANSACTIONS
            if not failure.retriable() or time.monotonic() >= deadline_s:
                break
        if is_unfinished:  # a last look that was too short for an answer says nothing else
            raise Unfinished(failure.str())
        raise ShipmentFailed(failure.str())

    def ship(
        self, plan_id: str, parcels: Sequence[Sendable], progress: ProgressHead, facts: Sequence[Sendable] = ()
    ) -> None:
        """Parcels of a plan with its progress, and what else is to be known of them. Raises as `write`."""
        value = progress.model_dump_json().encode()
        self.write(parcels, [*facts, OutgoingRecord(self._topic, progress_key(plan_id), value, partition=PARTITION)])

    def write(
        self,
        parcels: Sequence[Sendable],
        facts: Sequence[Sendable],
        confirm: Callable[[], None] | None = None,
        seconds: float = ANSWER_S,
    ) -> None:
        """All of it, or nothing. `confirm` is called when all is acknowledged; what it raises aborts.

        Raises Refused (parcels by index), TargetRefused, TakenOver, Unanswered after so many seconds, ShipmentFailed.
        """
        errors: dict[int, KafkaError] = {}
        answered: set[int] = set()
        try:
            self._producer.begin_transaction()
            for index, parcel in enumerate((*parcels, *facts)):
                self._produce(index, parcel, _Report(index, errors, answered))
            if self._is_acknowledged(errors, seconds):
                if confirm is not None:
                    self._ask(confirm, seconds)
                self._commit()
                return
        except KafkaException as error:
            raise _failure(error.args[0]) from None
        silent = all(error.code() in SILENT_PARTITION for error in errors.values())
        unanswered = Unanswered(set(range(len(parcels) + len(facts))) - answered) if silent else None
        try:
            self._abort(seconds)
        except ShipmentFailed as failure:
            raise unanswered or failure from None
        raise unanswered or _verdict(errors, len(parcels))

    def close(self) -> None:
        """Give up what is open; it is aborted by the next `init`, or by the broker in time."""
        give_up(self._producer)

    def _produce(self, index: int, parcel: Sendable, report: "_Report") -> None:
        while True:
            try:
                self._producer.produce(
                    parcel.target, parcel.value, parcel.key, parcel.partition, on_delivery=report.note,
                    headers=parcel.headers,
                )  # fmt: skip
                return
            except BufferError:
                self._producer.poll(FULL_POLL_S)
            except KafkaException as error:
                if error.args[0].code() not in OF_ONE_RECORD | OF_THE_TARGET:
                    raise
                report.refuse(error.args[0])
                return

    def _is_acknowledged(self, errors: Mapping[int, KafkaError], seconds: float) -> bool:
        """Wait for the reports of all; after the first error no more are sent in this transaction."""
        deadline_s = time.monotonic() + seconds
        while len(self._producer) and not errors and time.monotonic() < deadline_s:
            self._producer.poll(FULL_POLL_S)
        return not errors and not len(self._producer)

    def _ask(self, confirm: Callable[[], None], seconds: float) -> None:
        try:
            confirm()
        except Exception:
            with suppress(TakenOver, ShipmentFailed):
                self._abort(seconds)  # readers of its partitions wait for its end
            raise

    def _commit(self) -> None:
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            try:
                self._producer.commit_transaction(ANSWER_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise

    def _abort(self, seconds: float) -> None:
        try:
            self._producer.abort_transaction(seconds)
        except KafkaException as error:
            raise _failure(error.args[0]) from None


class _Report:
    """The delivery report of one parcel."""

    __slots__ = ("_answered", "_errors", "_index")

    def __init__(self, index: int, errors: dict[int, KafkaError], answered: set[int]) -> None:
        self._index = index
        self._errors = errors
        self._answered = answered

    def note(self, error: KafkaError | None, message: Any) -> None:
        refused = delivery_error(error, message)
        if refused is not None:
            self.refuse(refused)
        else:
            self._answered.add(self._index)

    def refuse(self, error: KafkaError) -> None:
        self._errors[self._index] = error


def _failure(error: KafkaError) -> Exception:
    return TakenOver() if error.code() in TAKEN_OVER else ShipmentFailed(error.str())


def _verdict(errors: Mapping[int, KafkaError], parcels: int) -> Exception:
    # What was still queued behind the first error is reported as purged: it says nothing about those records.
    errors = {index: error for index, error in errors.items() if error.code() not in PURGED} or errors
    codes = {index: error.code() for index, error in errors.items()}
    if any(code in TAKEN_OVER for code in codes.values()):
        return TakenOver()
    if facts := [index for index in codes if index >= parcels]:  # the progress itself
        return ShipmentFailed(errors[facts[0]].str())
    if any(code in OF_THE_TARGET for code in codes.values()):
        refused = {index: error for index, error in errors.items() if error.code() in OF_THE_TARGET}
        return TargetRefused(next(error.str() for error in refused.values()), refused)
    guilty = {index: code for index, code in codes.items() if code in OF_ONE_RECORD}
    return Refused(guilty) if guilty else ShipmentFailed(next((e.str() for e in errors.values()), "no answer"))


def why_none(client: Mapping[str, Any], group: str) -> str:
    """Reason why there are no transactions, without which schedules, redrives and changes don't work; empty: brokers
    have them, or haven't said within `LOOK_S` seconds.

    The question takes a transactional id, one of those that schedules of the group may use, and sends nothing under it.
    """
    shipping = TransactionalSender(client, f"tickover.{group}.schedules.probe", "")
    try:
        shipping.init(LOOK_S)
    except NoTransactions as error:
        return str(error)
    except ShipmentFailed as error:
        log.debug("nobody says whether there are transactions", extra={"error": str(error)})
    finally:
        shipping.close()
    return ""


class TransactionWatch:
    """Asks at the start, then again while there are none: brokers may be upgraded. For one thread at a time."""

    def __init__(self, look: Callable[[], str], guarantee: str) -> None:
        self._look = look
        self._guarantee = guarantee
        self._is_known = False
        self.warnings: tuple[str, ...] = ()  # for /readyz, from any thread

    def step(self) -> None:
        """Ask, unless it is known that there are."""
        if self._is_known:
            return
        problem = self._look()
        if problem and self._guarantee == "exactly_once":
            problem += EXACTLY_ONCE
        if problem and not self.warnings:
            log.warning("features are missing", extra={"problem": problem})
        self._is_known, self.warnings = not problem, (problem,) if problem else ()
