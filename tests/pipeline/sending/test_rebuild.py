"""Rows that `rebuild` makes: each message once, whatever ids they share, and as control records have left it."""

from collections import Counter
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS, block, entries
from tests.pipeline.sending.test_dispatch import Killed
from tests.pipeline.sending.test_redrive import Headers, came, filled
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
