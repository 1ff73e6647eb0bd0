"""Control records for many messages: made, checked as the engine will, sent; and read again to see who sent them."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message

from policies.decide import decide
from policies.decision import CANCEL, FIRE, Facts, Quarantine
from policies.duration import is_past
from policies.headers import ACTION, CHANGE, DELAY, DELIVER_AT, ID, IF_OFFSET
from policies.kafka_clients import Consumer, Producer
from policies.table import PolicyTable
from sidecar.kafka.background import give_up
from sidecar.kafka.client_settings import control_sender_settings, reader_settings
from sidecar.kafka.errors import OF_ONE_RECORD, OF_THE_TARGET, delivery_error
from sidecar.kafka.topic_follower import LogUnavailable, read
from sidecar.model.header_codec import headers_of
from sidecar.model.record import Headers
from sidecar.model.reserved_topics import NOT_A_SOURCE
from sidecar.operations.bulk.outcome import Place
from sidecar.operations.bulk.plan import IN_THE_PAST, ChangePlan, Item

FULL_POLL_S: Final = 0.05
ACKNOWLEDGED_S: Final = 8.0  # well within a lease
GAP_MAX: Final = 500  # offsets between two control records that are read in one go


def control_headers(plan: ChangePlan, item: Item) -> Headers:
    """The headers of the control record for one message: it acts once, on what is held where it was seen."""
    headers = [(ID, item.id), (ACTION, plan.action), (IF_OFFSET, str(item.offset)), (CHANGE, plan.id)]
    when = plan.when
    if plan.action in (CANCEL, FIRE):
        pass  # they have no time
    elif when.delay_ms is not None:
        headers.append((DELAY, str(when.delay_ms)))
    elif when.deliver_at_ms is not None:
        headers.append((DELIVER_AT, str(when.deliver_at_ms)))
    else:
        assert when.by_ms is not None, "a reschedule has a time"
        headers.append((DELIVER_AT, str(max(item.due_ms + when.by_ms, 0))))
    return [(name, text.encode()) for name, text in headers]


def objection(plan: ChangePlan, item: Item, headers: Headers, table: PolicyTable, now_ms: int) -> str:
    """Why nothing is sent for it: the engine would quarantine it, or it would be due long before the plan was made,
    which is judged alike after a crash. Empty: nothing is wrong.
    """
    if plan.when.by_ms is not None and not plan.past and is_past(item.due_ms + plan.when.by_ms, plan.created_ms):
        return IN_THE_PAST
    decision = decide(Facts(item.topic, item.partition, 0, now_ms, [], dict(headers)), table)
    return decision.reason if isinstance(decision, Quarantine) else ""


class ControlRecordSender:
    """Sends control records; a producer of its own. A record that is sent twice acts once."""

    def __init__(self, client: Mapping[str, Any], reserved: Container[str] = ()) -> None:
        self._producer: Any = Producer(control_sender_settings(client))
        self._reserved = reserved

    def send(self, controls: Sequence[tuple[Item, Headers]], now_ms: int) -> list[int | str]:
        """Returns when Kafka has them all: their offsets, or why Kafka will never take one. Raises LogUnavailable."""
        reports = [_Report() for _ in controls]
        for (item, headers), report in zip(controls, reports, strict=True):
            if item.topic not in self._reserved:
                self._produce(item, headers, now_ms, report)
        self._producer.flush(ACKNOWLEDGED_S)
        answers: list[int | str] = []
        for (item, _), report in zip(controls, reports, strict=True):
            if item.topic in self._reserved:  # what other replicas hold is said over Redis, where anybody may speak
                answers.append(NOT_A_SOURCE)
            elif report.offset >= 0:
                answers.append(report.offset)
            elif report.error is not None and report.error.code() in OF_ONE_RECORD | OF_THE_TARGET:
                answers.append(report.error.name().lower())
            else:
                problem = "no answer" if report.error is None else report.error.str()
                raise LogUnavailable(f"control records can't be written: {problem}")
        return answers

    def close(self) -> None:
        """Give up what is under way: whoever goes on sends it again."""
        give_up(self._producer)

    def _produce(self, item: Item, headers: Headers, now_ms: int, report: "_Report") -> None:
        while True:
            try:
                self._producer.produce(
                    item.topic, None, None, item.partition, on_delivery=report.note, timestamp=now_ms, headers=headers
                )
                return
            except BufferError:
                self._producer.poll(FULL_POLL_S)
            except KafkaException as error:
                report.error = error.args[0]
                return


class SentControls:
    """Control records as they lie in their sources. For any thread."""

    def __init__(self, client: Mapping[str, Any], topic: str) -> None:
        self._settings = reader_settings(client, f"{topic}.receipts")  # a right that receipts need, too

    def of_plan(self, plan_id: str, places: Collection[Place]) -> frozenset[Place]:
        """Places, of the ones given, where a control record of this plan lies. Raises LogUnavailable."""
        if not places:
            return frozenset()
        consumer = Consumer(self._settings)
        try:
            return frozenset(
                (*lane, message.offset() or 0)
                for lane, start, end in _runs(places)
                for messages in read(consumer, lane, start, end)
                for message in messages
                if is_of_plan(message, plan_id)
            ).intersection(places)
        finally:
            consumer.close()


def is_of_plan(message: Message, plan_id: str) -> bool:
    """Whether this change has sent it."""
    try:
        return (CHANGE, plan_id.encode()) in (headers_of(message) or ())
    except SystemError:  # a name that isn't UTF-8: none of ours
        return False


def _runs(places: Iterable[Place]) -> list[tuple[tuple[str, int], int, int]]:
    """(partition, start, end) that together have these places, and little else."""
    runs: list[list[Place]] = []
    for place in sorted(places):
        last = runs[-1][-1] if runs else None
        if last is not None and place[:2] == last[:2] and place[2] - last[2] <= GAP_MAX:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [(run[0][:2], run[0][2], run[-1][2] + 1) for run in runs]


class _Report:
    """The delivery report of one control record."""

    __slots__ = ("error", "offset")

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.offset = -1

    def note(self, error: KafkaError | None, message: Any) -> None:
        self.error = delivery_error(error, message)
        if self.error is None:
            self.offset = message.offset()
