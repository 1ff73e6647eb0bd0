"""`schedule` on a real Kafka: each row once, however often it runs, and a word about every row."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.ledger_rows import NOW_MS
from tests.services.site import headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DUE = "2030-01-02T03:04:05Z"
DUE_MS = 1_893_553_445_000
ROWS = [
    ("mail", "a", "one", DUE, None),
    ("mail", None, "two", str(NOW_MS), "mine-1"),
    ("mail", "a", "one", DUE, None),  # wholly alike: another message
    ("mail", "ä", None, "2030-01-02T03:04:05+01:00", None),
    ("no topic", "a", "x", DUE, None),
    (None, "a", "x", DUE, None),
    ("mail", "a", "x", "2030-01-02T03:04:05", None),
    ("mail", "a", "x", "soon", None),
    ("mail", "a", "x", "-5", None),
    ("mail", "a", "x", "1893456000", None),  # seconds
    ("mail", "a", "x", None, None),
    ("mail", "a", "x", DUE, ""),
    ("mail", "a", "x", DUE, "twice"),
    ("mail", "a", "y", DUE, "twice"),
    ("mail", "a", "x", DUE, "schedule:nightly:1800000000000"),
]
COLUMNS = "topic string, key string, value string, due string, id string"
SENT = 4


def planned(spark, rows=ROWS, spread_ms: int = 0):
    from pipeline.sending.schedule import messages

    return messages(spark.createDataFrame(rows, COLUMNS), "reminders", "job", spread_ms)


def errand(**more: Any):
    from pipeline.sending.dispatch import Errand
    from pipeline.sending.schedule import MARK

    return Errand("schedule", "job", MARK, **more)


def run(warehouse, kafka, topic: str, rows=ROWS, **more: Any) -> dict[str, Any]:
    from pyspark.sql import functions as F

    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.sending.dispatch import dispatch

    plan = planned(warehouse.spark, rows).withColumn("topic", F.lit(topic))
    return dispatch(warehouse, KafkaPlace(kafka.bootstrap), errand(**more), plan)


def ids(kafka, topic: str) -> Counter[Any]:
    return Counter(dict(headers_of(message))["tickover-id"] for message in kafka.read_all(topic))


def test_rows_become_messages_or_say_why_not(spark) -> None:
    rows = planned(spark).collect()
    good = [row for row in rows if row.refused is None]
    told = sorted(
        (row.due_ms, row.key and bytes(row.key).decode(), row.value and bytes(row.value).decode()) for row in good
    )
    hour_ms = 3_600_000
    assert told == [(NOW_MS, None, "two"), (DUE_MS - hour_ms, "ä", None), (DUE_MS, "a", "one"), (DUE_MS, "a", "one")]
    assert len({row.id for row in good}) == SENT
    assert Counter(row.refused.partition(":")[0] for row in rows if row.refused) == {"topic": 2, "due": 5, "id": 4}
    mine = next(row for row in good if row.id == "mine-1")
    assert [(one["key"], bytes(one["value"])) for one in mine.headers] == [
        ("tickover-deliver-at", str(NOW_MS).encode()),
        ("tickover-target", b"mail"),
        ("tickover-id", b"mine-1"),
    ]


def test_no_message_comes_from_a_reserved_topic_or_goes_to_one(spark) -> None:
    from pipeline.errors import PipelineError
    from pipeline.sending.schedule import messages

    rows = spark.createDataFrame(
        [(name, "a", "x", DUE, None) for name in ("__x", "tickover.policies", "mail")], COLUMNS
    )
    for source in ("tickover.policies", "__consumer_offsets", "tickover.shop.ledger"):
        with pytest.raises(PipelineError, match=source):
            messages(rows, source, "job", 0)
    told = Counter(row.refused for row in messages(rows, "reminders", "job", 0).collect())
    assert told == {None: 1, "topic: it is one of tickover's own topics, or of Kafka's": 2}


def test_ids_do_not_depend_on_the_order_of_rows(spark) -> None:
    both = [{row.id for row in planned(spark, rows).collect()} for rows in (ROWS[:4], ROWS[3::-1])]
    assert both[0] == both[1]


def test_an_id_depends_on_nothing_but_its_row(spark) -> None:
    plain, named = ("mail", "a", "one", DUE, None), ("mail", "a", "one", DUE, "mine")
    made = {
        frozenset(row.id for row in planned(spark, rows).collect()) - {"mine"}
        for rows in ([plain], [plain, named], [named, plain])
    }
    assert len(made) == 1


def test_spreading_moves_due_times_evenly_and_always_alike(spark) -> None:
    rows = [("mail", str(number), None, str(NOW_MS), None) for number in range(400)]
    moved = [sorted(row.due_ms - NOW_MS for row in planned(spark, rows, 1_000).collect()) for _ in range(2)]
    assert moved[0] == moved[1]
    assert moved[0][0] >= 0
    assert moved[0][-1] <= 1_000
    assert 350 < sum(moved[0]) / 400 < 650


def test_input_in_other_forms(spark) -> None:
    from pipeline.errors import PipelineError
    from pipeline.sending.schedule import messages

    frame = spark.sql(
        "SELECT 'mail' AS topic, TIMESTAMP '2030-01-02 03:04:05' AS due, X'00FF' AS value, map('a', 'b') AS headers"
    )
    [row] = messages(frame, "reminders", "job", 0).collect()
    assert (row.due_ms, bytes(row.value), row.key, row.refused) == (DUE_MS, b"\x00\xff", None, None)
    assert (row.headers[0]["key"], bytes(row.headers[0]["value"])) == ("a", b"b")
    given = frame.selectExpr("topic", "1893456000000L AS due", """'{"a": "b"}' AS headers""")
    [row] = messages(given, "r", "j", 0).collect()
    assert (row.due_ms, len(row.headers)) == (1_893_456_000_000, 4)
    with pytest.raises(PipelineError, match="no column due"):
        messages(frame.select("topic"), "r", "j", 0)


def made(spark, columns: str) -> Any:
    """The one message of a row that has `topic` and these columns."""
    from pipeline.sending.schedule import messages

    [row] = messages(spark.sql(f"SELECT 'mail' AS topic, {columns}"), "reminders", "job", 0).collect()
    return row


@pytest.mark.parametrize(
    ("due", "due_ms"),
    [
        ("TIMESTAMP '2030-01-02 03:04:05.000900Z'", DUE_MS + 1),
        ("TIMESTAMP '1969-12-31 23:59:59.999900Z'", 0),
        ("'2030-01-02T03:04:05.0009Z'", DUE_MS + 1),
        ("'2030-01-02T03:04:05.0000000001Z'", DUE_MS + 1),
        ("'2030-01-02T03:04:05.9990001+00:00'", DUE_MS + 1_000),
        ("'2030-01-02T03:04:05.12Z'", DUE_MS + 120),
        ("'2030-01-02T03:04:05,12Z'", DUE_MS + 120),
        ("'2030-01-02T03:04Z'", DUE_MS - 5_000),
        ("'2030-01-02T04:04:05+0100'", DUE_MS),
        ("'2030-01-02T04:04:05.5+01'", DUE_MS + 500),
        ("1893553445L", None),  # seconds
        ("'1893553445'", None),
        ("'1971-01-01T00:00:00Z'", None),  # in the record's header it would be taken for seconds
        ("'2030-01-02T03:04:05.120000000Z'", DUE_MS + 120),
        ("1893553445000.9D", DUE_MS + 1),
        ("1893553445000.001BD", DUE_MS + 1),
        ("CAST(1893553445000.0 AS DOUBLE)", DUE_MS),
        ("DOUBLE('NaN')", None),
        ("DOUBLE('Infinity')", None),
        ("1e30D", None),
        ("'1893553445000.9'", None),
    ],
)
def test_a_time_is_rounded_up_never_early(spark, due: str, due_ms: int | None) -> None:
    row = made(spark, f"{due} AS due")
    assert (row.due_ms if row.refused is None else None) == due_ms


@pytest.mark.parametrize(
    "text",
    [
        '{"tenant": "gold"',
        "tenant=gold",
        "[1]",
        "7",
        "null",
        '{"a": "b"} x',
        '{"a": "b"}, {"c": "d"}',
    ],
)
def test_a_row_whose_headers_cannot_be_read_is_refused(spark, text: str) -> None:
    assert made(spark, f"1893456000000L AS due, '{text}' AS headers").refused == "headers: not JSON of a map of text"


def test_a_header_that_json_names_twice_is_sent_twice(spark) -> None:
    row = made(spark, """1893456000000L AS due, '{"a": "1", "a": "2"}' AS headers""")
    assert [(one["key"], bytes(one["value"])) for one in row.headers[:-3]] == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize("text", ["NULL", "''", "'{}'"])
def test_headers_may_be_left_out(spark, text: str) -> None:
    row = made(spark, f"1893456000000L AS due, {text} AS headers")
    assert (row.refused, len(row.headers)) == (None, 3)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ("map('a', 'b', 'tickover-id', 'x')", "headers: tickover-id: a name must not begin with tickover-"),
        ("""'{"tickover-anything": "x"}'""", "headers: tickover-anything: a name must not begin with tickover-"),
        ("array(named_struct('key', CAST(NULL AS string), 'value', X'00'))", "headers: a name that is no text"),
        ("array(named_struct('key', CAST(X'FF' AS string), 'value', X'00'))", "headers: a name that is no text"),
    ],
)
def test_headers_that_would_come_to_something_else_are_refused(spark, headers: str, said: str) -> None:
    """A repeated control header would be quarantined, long after the row was reported as sent."""
    assert made(spark, f"1893456000000L AS due, {headers} AS headers").refused == said


@pytest.mark.parametrize(
    ("columns", "headers"),
    [
        ("'2030-01-02T03:04:05.0001Z' AS expires", {"expires-at": b"%d" % (DUE_MS + 1)}),
        ("7 AS target_partition", {"target-partition": b"7"}),
        ("'7' AS target_partition, 2.0D AS attempt", {"target-partition": b"7", "attempt": b"2"}),
        ("5L AS first_failure, 'E' AS error_class", {"first-failure": b"5", "error-class": b"E"}),
        ("X'FF' AS error_message, 'a/0/1' AS origin", {"error-message": b"\xff", "origin": b"a/0/1"}),
        ("0 AS spread_ms, true AS payload_known", {"spread": b"0"}),
        ("CAST(NULL AS int) AS attempt, CAST(NULL AS string) AS expires, NULL AS origin", {}),
    ],
)
def test_more_columns_say_what_more_headers_would(spark, columns: str, headers: dict[str, bytes]) -> None:
    row = made(spark, f"1893456000000L AS due, {columns}")
    named = {one["key"].removeprefix("tickover-"): bytes(one["value"]) for one in row.headers}
    assert row.refused is None
    assert {name: named[name] for name in named.keys() - {"deliver-at", "target", "id"}} == headers


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("'soon' AS expires", "expires: not a time (epoch ms, timestamp, or RFC 3339 with a zone)"),
        ("-1 AS target_partition", "target_partition: not a whole number from 0 to 2147483647"),
        ("0 AS attempt", "attempt: not a whole number from 1 to 2147483646"),
        ("1.5D AS attempt", "attempt: not a whole number from 1 to 2147483646"),
        ("'x' AS first_failure", "first_failure: not a whole number from 0 to 253402300799999"),
        ("false AS payload_known", "payload: it was not ingested, and a null value would be a deletion"),
    ],
)
def test_what_more_columns_cannot_mean_is_refused(spark, columns: str, said: str) -> None:
    assert made(spark, f"1893456000000L AS due, {columns}").refused == said


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("DATE '2030-01-02' AS due", "column due is date, not epoch ms, a timestamp"),
        ("TIMESTAMP_NTZ '2030-01-02 03:04:05' AS due", "column due is timestamp_ntz, not epoch ms"),
        ("true AS due", "column due is boolean, not epoch ms"),
        ("1893456000000L AS due, 7L AS key", "column key is bigint, not text or bytes"),
        ("1893456000000L AS due, struct(7) AS value", "column value is struct<col1:int>, not text or bytes"),
        ("1893456000000L AS due, array('a') AS headers", "column headers is array<string>, not a map of text"),
        ("1893456000000L AS due, 5 AS headers", "column headers is int, not a map of text, or JSON of one"),
        ("1893456000000L AS due, true AS attempt", "column attempt is boolean, not a whole number"),
        ("1893456000000L AS due, 1 AS payload_known", "column payload_known is int, not true or false"),
    ],
)
def test_columns_of_types_that_mean_something_else_are_refused(spark, column: str, said: str) -> None:
    from pipeline.errors import PipelineError
    from pipeline.sending.schedule import messages

    with pytest.raises(PipelineError, match=said):
        messages(spark.sql(f"SELECT 'mail' AS topic, {column}"), "r", "j", 0)


def test_running_again_sends_nothing_again(kafka, warehouse) -> None:
    from pipeline.sending.sending import REPORT

    topic = kafka.topic("reminders", 3)
    came = run(warehouse, kafka, topic, slice_rows=6)
    assert came == {"stopped": False, "rows": {"sent": SENT, "refused": 10}}
    assert sum(ids(kafka, topic).values()) == SENT
    report = warehouse.read("gold/schedule/job", REPORT).collect()
    places = {(row.partition, row.offset) for row in report if row.state == "sent"}
    assert places == {(message.partition(), message.offset()) for message in kafka.read_all(topic)}
    more = [*ROWS, ("mail", "new", "row", DUE, None)]
    assert run(warehouse, kafka, topic, more)["rows"] == {"sent": SENT + 1, "refused": 10}
    assert set(ids(kafka, topic).values()) == {1}


def test_a_run_that_was_cut_off_is_taken_up_from_what_the_topic_has(kafka, warehouse) -> None:
    from pipeline.sending.dispatch import FOUND
    from pipeline.sending.sending import REPORT

    topic = kafka.topic("reminders", 2)
    run(warehouse, kafka, topic, ROWS[:2])
    run(warehouse, kafka, topic, ROWS[:3])
    # The second run died before its report was whole, after it had sent.
    shutil.rmtree(Path(warehouse.root) / "gold/schedule/job/batch=1")
    assert run(warehouse, kafka, topic)["rows"]["sent"] == SENT
    assert set(ids(kafka, topic).values()) == {1}
    assert len(ids(kafka, topic)) == SENT
    found = warehouse.read("gold/schedule/job", REPORT).where(f"detail = '{FOUND}'").collect()
    assert [row.batch for row in found] == [1]


def test_the_stop_switch_ends_a_run_before_its_next_slice(kafka, warehouse, monkeypatch) -> None:
    from pipeline.sending import dispatch
    from pipeline.sending.sending import send as asked

    topic = kafka.topic("reminders")
    rows = [("mail", str(number), None, DUE, None) for number in range(40)]

    def send_and_stop(*arguments: Any) -> Any:
        dispatch.stop(warehouse, errand())
        return asked(*arguments)

    monkeypatch.setattr(dispatch, "send", send_and_stop)
    came = run(warehouse, kafka, topic, rows, slice_rows=20)
    assert came["stopped"]
    assert 0 < came["rows"]["sent"] < 40
    monkeypatch.setattr(dispatch, "send", asked)
    assert run(warehouse, kafka, topic, rows, slice_rows=20) == {"stopped": False, "rows": {"sent": 40}}
    assert set(ids(kafka, topic).values()) == {1}


def test_the_rate_is_kept(kafka, warehouse) -> None:
    topic = kafka.topic("reminders")
    rows = [("mail", str(number), None, DUE, None) for number in range(600)]
    run(warehouse, kafka, topic, rows, rate=300.0)
    times = sorted(message.timestamp()[1] for message in kafka.read_all(topic))
    assert len(times) == 600
    assert times[-1] - times[0] > 500  # without a limit it is a few ms; two tasks of 150 a second each need 1.3 s
