"""Rows that `rebuild` makes: each message once, whatever ids they share, and as control records have left it."""

from collections import Counter
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS, block, entries
from tests.pipeline.sending.test_dispatch import Killed
from tests.pipeline.sending.test_redrive import Headers, came, filled, headers_in
from tests.services.kafka import Kafka
from tests.services.site import headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HOUR_MS = 3_600_000
NAMED: Headers = [("tickover-id", b"order-5")]


def send_held(warehouse: Any, kafka: Kafka, topic: str) -> dict[str, int]:
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.sending import schedule
    from pipeline.sending.dispatch import Errand, dispatch

    held = warehouse.read_report("gold/overflow")
    errand = Errand("schedule", "back", schedule.mark_of(held))
    rows: dict[str, int] = dispatch(
        warehouse, KafkaPlace(kafka.bootstrap), errand, schedule.messages(held, topic, "back", 0)
    )["rows"]
    return rows


def named(**headers: str) -> Headers:
    return [(f"tickover-{name.replace('_', '-')}", text.encode()) for name, text in headers.items()]


def acts(offset: int, action: str, id: str, if_offset: int, **more: str) -> tuple[Any, ...]:
    """A control record as REST sends it."""
    return came(offset, named(id=id, action=action, if_offset=str(if_offset), **more), b"")


def test_control_records_that_name_an_offset_are_applied_where_the_rows_are_made(warehouse: Any, spark: Any) -> None:
    """On another cluster the messages have other offsets: a cancel would find nothing, and what it meant would fire."""
    from pipeline import jobs

    far = {5: "far-cancelled", 6: "far-moved", 7: "far", 8: "far-chain"}
    put = entries([(offset, NOW_MS + HOUR_MS) for offset in far])._replace(ids=dict(far))
    near = ["near-cancelled", "near-moved", "near-fired", "near", "near-replaced"]
    source = [came(offset, named(id=id, delay="1h")) for offset, id in far.items()]
    source += [came(10 + n, named(id=id, delay="1m", spread="5s", of_mine="x")) for n, id in enumerate(near)]
    source += [
        acts(20, "cancel", "far-cancelled", 5), acts(21, "reschedule", "far-moved", 6, delay="2h"),
        acts(22, "cancel", "far", 99), acts(23, "reschedule", "far-chain", 8, deliver_at=str(NOW_MS + 7)),
        acts(24, "cancel", "far-chain", 8), acts(25, "fire", "far-chain", 23),
        acts(26, "cancel", "near-cancelled", 10), acts(27, "reschedule", "near-moved", 11, delay="2h"),
        acts(28, "fire", "near-fired", 12), came(29, named(id="near-replaced", delay="3h")),
        acts(30, "cancel", "near-replaced", 14), came(31, named(id="near", action="cancel"), b""),
        acts(32, "reschedule", "near", 13, delay="soon"),
    ]  # fmt: skip
    made = filled(warehouse, spark, [block(low=10, number=1, entries=put)], source)
    assert made["by_control_records"] == {"cancelled": 2, "moved": 4, "applied": 7, "missed": 3}
    assert (made["held"], made["unsettled"], made["of_them_control_records"]) == (3, 7, 2)
    held = {row.message_id: row.due - NOW_MS for row in warehouse.read_report("gold/overflow").collect()}
    assert held == {"far-moved": 2 * HOUR_MS, "far": HOUR_MS, "far-chain": 0}
    rows = {row.place.offset: row for row in jobs.resend_rows(warehouse).collect()}
    assert rows.keys() == {11, 12, 13, 14, 29, 31, 32}, "31 names no offset, 32 can't be read: they go as they came"
    due = named(of_mine="x", deliver_at=str(NOW_MS + 2 * HOUR_MS), spread="0")
    assert headers_in(rows[11]) == [*named(id="near-moved"), *due, *named(source="orders-retry/3/11")]
    assert dict(headers_in(rows[12]))["tickover-deliver-at"] == b"%d" % NOW_MS
    assert headers_in(rows[14])[:-1] == named(id="near-replaced", delay="1m", spread="5s", of_mine="x")


def test_what_a_retry_has_counted_stays_when_it_is_moved(warehouse: Any, spark: Any) -> None:
    from pipeline import jobs
    from pipeline.reports.backtest import policy_table
    from pipeline.reports.facts import facts_of
    from policies.decide import decide
    from policies.decision import Hold
    from tests.pipeline.sending.test_resend import POLICIES

    failed = came(5, named(id="order-5", error_class="shop.Timeout"))
    topic, partition, offset, time_ms, *rest = acts(6, "reschedule", "order-5", 5, delay="1h")
    moved = (topic, partition, offset, time_ms + 9, *rest)
    filled(warehouse, spark, [block(low=5)], [failed, moved])
    [row] = jobs.resend_rows(warehouse).collect()
    decision = decide(facts_of(("orders-retry", 3, 0), row.timestamp_ms, headers_in(row)), policy_table(POLICIES, "p"))
    assert isinstance(decision, Hold)
    assert (decision.due_ms, decision.first_failure_ms, decision.attempt) == (NOW_MS + 9 + HOUR_MS, NOW_MS, 2)


def test_messages_that_share_an_id_are_all_sent_each_once(
    kafka: Kafka, warehouse: Any, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id names one message of one source; other sources, partitions and keys may have it, too."""
    from pipeline.warehouse.tables import Warehouse

    put = entries([(5, NOW_MS + HOUR_MS), (6, NOW_MS + HOUR_MS)])
    here, there = (
        [came(5, NAMED), came(6, [])],
        ("orders-retry", 1, 5, NOW_MS, None, bytearray(b"other"), [("tickover-id", bytearray(b"order-5"))]),
    )
    made = filled(
        warehouse, spark, [block(number=1, entries=put), block(partition=1, number=1, entries=put)], [*here, there]
    )
    assert (made["held"], made["without_payload"]) == (4, 1)
    topic = kafka.topic("reminders", 2)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:  # all is sent, and there is no report
        patched.setattr(Warehouse, "write_batch", lambda _self, frame, *_: (frame.collect(), killed()))
        with pytest.raises(Killed):
            send_held(warehouse, kafka, topic)
    for _ in range(2):
        assert send_held(warehouse, kafka, topic) == {"sent": 3, "refused": 1}
    arrived = [dict(headers_of(one)) for one in kafka.read_all(topic)]
    assert Counter((one.get("tickover-id"), one["tickover-origin"]) for one in arrived) == {
        (b"order-5", b"orders-retry/3/5"): 1, (b"order-5", b"orders-retry/1/5"): 1, (None, b"orders-retry/3/6"): 1,
    }  # fmt: skip
