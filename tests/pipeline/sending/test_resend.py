"""`resend`: what the ledger says nothing of goes to its source again, and is decided there as it was."""

from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline import send_commands
from pipeline.cli import app
from pipeline.errors import PipelineError
from pipeline.reports.facts import facts_of
from policies.decide import decide
from sidecar.ledger.block import NOTHING_SETTLED
from sidecar.model.record import Outcome
from tests.pipeline.ledger_rows import NOW_MS, block, emitted, entries, settled
from tests.pipeline.sending.test_redrive import Headers, came, filled, headers_in
from tests.services.kafka import Kafka
from tests.services.site import headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

POLICIES = """
name: retries
match: {topics: [orders-retry]}
retry: {attempts: 5, backoff: {kind: fixed, delay: 10s}}
target: {topic: orders}
"""
FAILED: Headers = [
    ("mine", b"\xff"), ("mine", None), ("tickover-attempt", b"2"), ("tickover-first-failure", b"%d" % (NOW_MS - 9)),
    ("tickover-error-class", b"shop.Timeout"), ("tickover-id", b"order-5"), ("tickover-origin", b"orders-retry/0/1"),
    ("tickover-source", b"orders-retry/3/1"),
]  # fmt: skip
CANCEL: Headers = [("tickover-action", b"cancel"), ("tickover-id", b"order-7")]
MOVE: Headers = [("tickover-action", b"reschedule"), ("tickover-id", b"order-5"), ("tickover-delay", b"1m")]


def resent_rows(warehouse: Any) -> dict[str, Any]:
    from pipeline import jobs

    return {row.id: row for row in jobs.resend_rows(warehouse).collect()}


def test_what_is_neither_settled_nor_put_to_the_overflow_goes_back_as_it_came(warehouse, spark) -> None:
    from pipeline.reports.backtest import policy_table

    values = [block(number=1, low=5, entries=entries([(7, NOW_MS + 7)]), settled=emitted(6, 1))]
    source = [came(4, []), came(5, FAILED), came(6, []), came(7, []), came(8, CANCEL), came(9, [])]
    made = filled(warehouse, spark, values, source)
    assert (made["held"], made["unsettled"], made["of_them_control_records"]) == (1, 3, 1)
    assert made["sources"] == ["orders-retry"]
    rows = resent_rows(warehouse)
    assert rows.keys() == {"orders-retry/3/5", "orders-retry/3/8", "orders-retry/3/9"}, "4 is below L: it was settled"
    again, bare = rows["orders-retry/3/5"], rows["orders-retry/3/9"]
    assert (again.topic, again.partition, again.timestamp_ms, again.refused) == ("orders-retry", 3, NOW_MS, None)
    assert (bytes(again.key), bytes(again.value)) == (b"k", b"\x00")
    assert headers_in(again) == [*FAILED, ("tickover-source", b"orders-retry/3/5")]
    assert headers_in(rows["orders-retry/3/8"]) == [*CANCEL, ("tickover-source", b"orders-retry/3/8")]
    assert headers_in(bare) == [(name, b"orders-retry/3/9") for name in ("tickover-origin", "tickover-source")]
    table = policy_table(POLICIES, "policies")
    decisions = {
        decide(facts_of(("orders-retry", 3, 5), NOW_MS, headers), table) for headers in (FAILED, headers_in(again))
    }
    assert len(decisions) == 1


def test_what_was_moved_into_memory_is_held_and_its_control_record_does_not_go_again(warehouse, spark) -> None:
    """The control record would find nothing to move: the payload lies where it came, and is settled there."""
    carried = entries([(9, NOW_MS + 60_000)])._replace(sources={9: 5})
    moved = settled([(5, NOW_MS, Outcome.MOVED, 2)])._replace(related={5: 9})
    filled(warehouse, spark, [block(low=9, settled=moved, carried=carried)], [came(5, FAILED, b"paid"), came(9, MOVE)])
    [row] = spark.read.parquet(warehouse.path("gold/overflow")).collect()
    assert (row.due, bytes(row.value), row.message_id, row.origin) == (
        NOW_MS + 60_000, b"paid", "order-5", "orders-retry/0/1",
    )  # fmt: skip
    assert resent_rows(warehouse) == {}


def test_what_was_moved_and_then_settled_is_over(warehouse, spark) -> None:
    carried = entries([(9, NOW_MS + 60_000)])._replace(sources={9: 5})
    moved = settled([(5, NOW_MS, Outcome.MOVED, 2)])._replace(related={5: 9})
    values = [block(low=9, settled=moved, carried=carried), block(low=10, settled=emitted(9, 1))]
    made = filled(warehouse, spark, values, [came(5, FAILED), came(9, MOVE)])
    assert (made["held"], made["unsettled"]) == (0, 0)


def test_a_partition_of_which_the_ledger_says_nothing_yet_is_sent_whole(warehouse, spark) -> None:
    other = ("orders-retry", 1, 0, NOW_MS, None, bytearray(b"first"), None)
    made = filled(warehouse, spark, [block(low=5, settled=NOTHING_SETTLED)], [other])
    assert made["unsettled"] == 1
    assert resent_rows(warehouse).keys() == {"orders-retry/1/0"}


def test_a_record_whose_header_name_is_no_text_is_refused(warehouse, spark) -> None:
    filled(warehouse, spark, [block(low=5)], [came(5, [("bad\ufffd", b"x")])])
    [row] = resent_rows(warehouse).values()
    assert row.refused == "headers: a name that is no text"


def test_run_again_nothing_is_sent_twice_and_all_keeps_its_time(kafka: Kafka, warehouse, spark) -> None:
    from pyspark.sql import functions as F

    from pipeline import jobs
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.sending.dispatch import Errand, dispatch
    from pipeline.sending.resend import MARK

    filled(warehouse, spark, [block(low=5)], [came(5, FAILED), came(6, FAILED), came(7, [])])
    topic = kafka.topic("orders-retry", 4, message_timestamp_type="CreateTime")
    rows = jobs.resend_rows(warehouse).withColumn("topic", F.lit(topic))
    for _ in range(2):
        assert dispatch(warehouse, KafkaPlace(kafka.bootstrap), Errand("resend", "back", MARK), rows)["rows"] == {
            "sent": 3
        }
    arrived = kafka.read_all(topic)
    assert sorted(dict(headers_of(one))["tickover-origin"] or b"" for one in arrived) == [
        b"orders-retry/0/1", b"orders-retry/0/1", b"orders-retry/3/7",
    ]  # fmt: skip
    assert {(one.partition(), one.timestamp()[1]) for one in arrived} == {(3, NOW_MS)}


def test_what_acts_on_a_record_comes_right_behind_it_as_it_did(kafka: Kafka, warehouse, spark) -> None:
    """Sent side by side a cancel could come before its message, and find nothing; and the message would fire."""
    from pyspark.sql import functions as F

    from pipeline import jobs
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.sending.dispatch import Errand, dispatch
    from pipeline.sending.resend import MARK

    pairs = [came(2 * n, [("tickover-id", b"%d" % n)]) for n in range(60)]
    pairs += [came(2 * n + 1, [("tickover-id", b"%d" % n), ("tickover-action", b"cancel")], b"") for n in range(60)]
    others = [("orders-retry", 1, *one[2:]) for one in pairs]
    filled(warehouse, spark, [block(low=0)], pairs + others)
    topic = kafka.topic("orders-retry", 4, message_timestamp_type="CreateTime")
    rows = jobs.resend_rows(warehouse).withColumn("topic", F.lit(topic))
    came_back = dispatch(warehouse, KafkaPlace(kafka.bootstrap), Errand("resend", "back", MARK, slice_rows=50), rows)
    assert came_back["rows"] == {"sent": 240}
    assert len(warehouse.batches("gold/resend/back")) == 5
    for partition in (1, 3):
        there = [one for one in kafka.read_all(topic) if one.partition() == partition]
        assert [one.offset() for one in there] == sorted(one.offset() or 0 for one in there)
        at = [dict(headers_of(one))["tickover-source"] for one in there]
        assert at == [b"orders-retry/%d/%d" % (partition, offset) for offset in range(120)]


def test_without_a_rebuild_there_is_nothing_to_send(warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_commands, "open_warehouse", lambda _root, _spark: warehouse)
    refused = CliRunner().invoke(app, ["resend", "--warehouse", warehouse.root, "--job", "failover"])
    assert isinstance(refused.exception, PipelineError)
    assert "run `tickover pipeline rebuild` first" in str(refused.exception)
