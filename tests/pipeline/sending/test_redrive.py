"""`redrive` and `rebuild`: records sent again, or made again, are what the sidecar itself would have made of them."""

import json
from collections import Counter
from typing import Any

import pytest

from policies.decide import decide
from policies.decision import Facts, Hold
from sidecar.model.fingerprint import fingerprint
from sidecar.model.header_codec import emission_headers, split
from sidecar.model.record import Held, Place
from sidecar.operations.dead_letters.dead_letter import DeadLetter
from sidecar.operations.dead_letters.redrive_routing import destination, redriven_headers
from tests.pipeline.ledger_rows import NOW_MS, block, entries, ledger_frame
from tests.pipeline.sending.test_dispatch import opened
from tests.services.raw_records import produce_raw
from tests.services.site import headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

Headers = list[tuple[str, bytes | None]]
OWN: Headers = [("mine", b"\xff"), ("mine", None), ("tickover-origin", b"orders-retry/0/1"), ("tickover-id", b"a")]
DEAD: Headers = [
    *OWN,
    ("tickover-due", b"5"),
    ("tickover-policy", b"orders-retry@2"),
    ("tickover-attempt", b"5"),
    ("tickover-first-failure", b"1"),
    ("tickover-error-class", b"shop.Timeout"),
    ("tickover-error-message", b"no answer from 10.0.0.7"),
    ("tickover-reason", b"attempts_exhausted"),
    ("tickover-source", b"orders-retry/0/9"),
    ("tickover-redrive-count", b"1"),
    ("tickover-redrive-plan", b"before/2"),
    ("tickover-redrive-source", b"orders-dlq/0/3"),
]
QUARANTINED: Headers = [
    *OWN,
    ("tickover-delay", b"soon"),
    ("tickover-reason", b"bad_header"),
    ("tickover-source", b"reminders/1/4"),
    ("tickover-detail", b"not a duration"),
]
LETTERS: list[tuple[int, Headers | None]] = [
    (0, DEAD),
    (1, QUARANTINED),
    (2, [*DEAD, ("tickover-redrive-count", b"3")]),
    (3, [("tickover-reason", b"too_large"), ("tickover-source", b"reminders/1/5")]),
    (4, None),
    (5, [("tickover-reason", b"expired"), ("tickover-policy", b"reminders@1"), ("tickover-source", b"reminders/0/8")]),
    (
        6,
        [
            ("tickover-reason", b"order_full"),
            ("tickover-policy", b"orders@1"),
            ("tickover-source", b"orders-retry/0/8"),
        ],
    ),
    (7, [("tickover-reason", b"bad_header"), ("tickover-detail", b"too large to be produced: MSG_SIZE_TOO_LARGE")]),
]
VALUELESS = (3, 7)


def records(spark, topic: str = "dlq"):
    from pipeline.ingest.topics import RECORDS

    rows = []
    for offset, headers in LETTERS:
        pairs = None if headers is None else [(name, value and bytearray(value)) for name, value in headers]
        value = None if offset in VALUELESS else bytearray(b"value")
        rows.append((topic, 0, offset, NOW_MS + offset, bytearray(b"key"), value, pairs))
    return spark.createDataFrame(rows, RECORDS)


def chosen(spark, **choice: Any):
    from pipeline.sending.redrive import Choice, letters

    return letters(records(spark), Choice(**choice))


def outgoing(spark, target: str, *taken: Any, topic: str = "dlq") -> dict[int, Any]:
    from pipeline.sending.plans import Taken
    from pipeline.sending.redrive import Choice, Terms, letters, parcels, with_marks, with_plans

    chosen = with_plans(with_marks(letters(records(spark, topic), Choice()), []), [Taken(*one) for one in taken])
    rows = parcels(chosen, Terms(target, "job", 3)).collect()
    return {int(row.id.rpartition("/")[2]): row for row in rows}


def headers_in(row: Any) -> Headers:
    return [(one["key"], one["value"] if one["value"] is None else bytes(one["value"])) for one in row.headers]


def by_sidecar(offset: int, to_its_source: bool) -> Headers:
    letter = DeadLetter(Place("dlq", 0, offset), NOW_MS, b"key", b"value", dict(LETTERS)[offset])
    return redriven_headers(letter, to_its_source, "job/1")


def test_headers_are_those_of_the_sidecars_own_redrive(spark) -> None:
    delivered, returned = outgoing(spark, "orders"), outgoing(spark, "")
    for offset in (0, 1, 2, 5, 6):
        assert headers_in(delivered[offset]) == by_sidecar(offset, False)
    assert headers_in(returned[1]) == by_sidecar(1, True)
    assert (returned[1].topic, delivered[0].topic, bytes(delivered[0].value)) == ("reminders", "orders", b"value")


def test_letters_that_must_not_go_are_passed_over_with_the_reason(spark) -> None:
    reasons = {offset: row.refused for offset, row in outgoing(spark, "orders").items()}
    assert reasons == {
        0: None,
        1: None,
        2: "redriven_too_often",
        3: "no_value",
        4: None,
        5: None,
        6: None,
        7: "no_value",
    }
    reasons = {offset: row.refused for offset, row in outgoing(spark, "").items()}
    assert reasons == {
        0: "no_target", 1: None, 2: "no_target", 3: "no_value", 4: "no_target", 5: "no_target", 6: "no_target",
        7: "no_target",
    }  # fmt: skip
    assert {row.refused for row in outgoing(spark, "dlq").values()} == {"loop"}
    assert {row.refused for row in outgoing(spark, "tickover.shop.ledger").values()} == {"target_not_allowed"}
    assert {row.refused for row in outgoing(spark, "tickover.shop").values()} <= {
        None, "redriven_too_often", "no_value"
    }  # fmt: skip


def test_no_letter_goes_back_to_a_source_that_it_has_forged(spark) -> None:
    """The writer of a letter writes its headers: as a record of the topic of policies the letter would be a policy."""
    from pipeline.ingest.topics import RECORDS
    from pipeline.sending.redrive import Choice, Terms, letters, parcels, with_marks, with_plans

    sources = [b"tickover.policies/0/1", b"__consumer_offsets/3/1", b"tickover.a.b.audit/0/1", b"reminders/0/1"]
    rows = [
        ("dlq", 0, offset, NOW_MS, bytearray(b"key"), bytearray(b"value"),
         [("tickover-reason", bytearray(b"bad_header")), ("tickover-source", bytearray(source))])
        for offset, source in enumerate(sources)
    ]  # fmt: skip
    told = letters(spark.createDataFrame(rows, RECORDS), Choice())
    sent = parcels(with_plans(with_marks(told, []), []), Terms("", "job", 3)).collect()
    assert {row.topic: row.refused for row in sent} == {
        "tickover.policies": "target_not_allowed", "__consumer_offsets": "target_not_allowed",
        "tickover.a.b.audit": "target_not_allowed", "reminders": None,
    }  # fmt: skip


LETTERS_OF_OTHERS: list[tuple[str, Headers]] = [
    ("orders-dlq", []),
    ("orders-dlq", [("x-attempt", b"3"), ("tickover-origin", b"orders-retry/0/1")]),
    ("orders-dead", []),
    ("-dlq", []),
    ("a-dlq", [("tickover-source", b"orders-retry/0/1")]),
    ("orders-dlq", [("tickover-source", b"orders/0/1"), ("tickover-reason", b"expired")]),  # a delay topic's
    ("orders-dlq", [("tickover-source", b"reminders/0/1"), ("tickover-reason", b"expired")]),
    ("orders-dlq", [("tickover-source", b"orders/0/1"), ("tickover-reason", b"bad_header")]),
    ("orders-dlq", [("tickover-reason", b"bad_header")]),
]


def test_letters_that_name_no_policy_go_where_those_of_the_sidecars_own_redrives_go(spark) -> None:
    from pipeline.ingest.topics import RECORDS
    from pipeline.sending.redrive import Choice, Terms, letters, parcels, with_marks, with_plans

    rows = [
        (topic, 0, offset, NOW_MS, bytearray(b"key"), bytearray(b"value"),
         [(name, bytearray(value or b"")) for name, value in headers])
        for offset, (topic, headers) in enumerate(LETTERS_OF_OTHERS)
    ]  # fmt: skip
    told = letters(spark.createDataFrame(rows, RECORDS), Choice())
    sent = parcels(with_plans(with_marks(told, []), []), Terms("", "job", 3)).collect()
    by_sidecar = {
        f"{topic}/0/{offset}": destination(
            DeadLetter(Place(topic, 0, offset), NOW_MS, b"key", b"value", headers), lambda _: ()
        )
        for offset, (topic, headers) in enumerate(LETTERS_OF_OTHERS)
    }
    assert list(by_sidecar.values()).count("orders") == 5
    assert {row.id: row.topic or None for row in sent} == by_sidecar
    assert {row.id for row in sent if row.refused == "no_target"} == {id for id, to in by_sidecar.items() if not to}


def test_a_letter_without_a_key_goes_back_to_the_partition_that_it_came_from(spark) -> None:
    """There are those of its id: a control record that was sent again would meet none of them elsewhere."""
    from pyspark.sql import functions as F

    from pipeline.sending.redrive import Choice, Terms, letters, parcels, with_marks, with_plans

    with_key = records(spark).where("offset < 2")
    without = with_key.withColumns({"key": F.lit(None).cast("binary"), "offset": F.col("offset") + 10})
    chosen = with_plans(with_marks(letters(with_key.unionByName(without), Choice()), []), [])

    def partitions(target: str) -> dict[str, int | None]:
        return {row.id: row.partition for row in parcels(chosen, Terms(target, "job", 3)).collect()}

    assert partitions("") == {"dlq/0/0": None, "dlq/0/1": None, "dlq/0/10": None, "dlq/0/11": 1}
    assert set(partitions("orders").values()) == {None}


@pytest.mark.parametrize("connector", ["spark", "python"])
def test_a_letter_whose_headers_cannot_be_read_is_not_sent_without_them(kafka, warehouse, connector) -> None:
    from pipeline import jobs
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.ingest.stream import records_table, stream_topic
    from pipeline.sending.redrive import Choice, Terms

    topic = kafka.topic("orders-dlq")
    given = [(b"tickover-reason", b"attempts_exhausted"), (b"tenant", b"gold"), (b"\xff", b"x")]
    produce_raw(kafka.bootstrap, topic, b"v", given, key=b"k")
    place = KafkaPlace(kafka.bootstrap, connector=connector)
    stream_topic(warehouse, place, topic, records_table(topic))
    [row] = jobs.redrive_rows(warehouse, [topic], Choice(), Terms("orders", "job", 3), []).collect()
    assert row.refused == "unreadable"


def test_letters_of_the_sidecars_own_redrives_are_left_to_them(spark) -> None:
    plans = [("b", "dlq", 0, 1, 3), ("a", "dlq", 0, 2, 3), ("c", "dlq", 1, 0, 9), ("d", "other", 0, 0, 9)]
    found = {offset: row.refused for offset, row in outgoing(spark, "orders", *plans).items()}
    assert {offset for offset, refused in found.items() if refused and refused.startswith("planned ")} == {1, 2}
    assert found[1] == "planned b"
    assert found[0] is None


@pytest.mark.parametrize(
    ("choice", "offsets"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"reason": "attempts_exhausted"}, [0, 2]),
        ({"error_class": "*.Time*"}, [0, 2]),
        ({"policy": "reminders"}, [5]),
        ({"since_ms": NOW_MS + 1, "until_ms": NOW_MS + 3}, [1, 2]),
        ({"fingerprint": fingerprint("shop.Timeout", "no answer from 10.9.9.9")}, [0, 2]),
        ({"fingerprint": fingerprint("", "not a duration")}, [1]),
        ({"reason": "nothing"}, []),
    ],
)
def test_letters_are_chosen_by_what_they_say(spark, choice: dict[str, Any], offsets: list[int]) -> None:
    assert sorted(row.offset for row in chosen(spark, **choice).collect()) == offsets


def test_a_redrive_goes_to_kafka_once(kafka, warehouse, monkeypatch) -> None:
    from pipeline import jobs
    from pipeline.ingest.kafka import KafkaPlace
    from pipeline.ingest.stream import records_table
    from pipeline.sending.dispatch import Errand, dispatch
    from pipeline.sending.plans import read_plans
    from pipeline.sending.redrive import MARK, Choice, Terms

    target, redrives = kafka.topic("orders"), kafka.topic("redrives")
    span = {"partition": 0, "start": 0, "end": 1}
    kafka.produce(redrives, [(b"mine/plan", json.dumps({"topic": "dlq", "spans": [span]}).encode())])
    place = KafkaPlace(kafka.bootstrap)
    plans = read_plans(place.client, redrives)
    warehouse.write_batch(records(warehouse.spark), records_table("dlq"), 0, "timestamp_ms")
    rows = jobs.redrive_rows(warehouse, ["dlq"], Choice(), Terms(target, "job", 3), plans)
    monkeypatch.setattr(jobs, "FINDINGS_SHOWN_MAX", 1)
    planned = jobs.redrive_plan(rows)
    assert (planned["letters"], len(planned["kinds"])) == (4, 1), "all are counted, the most frequent are shown"
    monkeypatch.undo()
    planned = jobs.redrive_plan(rows)
    assert planned["letters"] == 4
    assert "planned mine" in {kind["refused"] for kind in planned["kinds"]}
    for _ in range(2):
        came = dispatch(warehouse, place, Errand("redrive", "job", MARK), rows)
        assert came["rows"] == {"sent": 4, "refused": 4}
    places = Counter(dict(headers_of(message))["tickover-redrive-source"] for message in kafka.read_all(target))
    assert places == {f"dlq/0/{offset}".encode(): 1 for offset in (1, 4, 5, 6)}


def test_a_plan_behind_an_open_transaction_is_seen(kafka) -> None:
    from pipeline.sending.plans import read_plans

    redrives = kafka.topic("redrives")
    theirs = opened(kafka, f"theirs-{redrives}", 5_000)  # another redrive, whose process has died
    theirs.produce(redrives, b"{}", b"theirs/progress")
    assert theirs.flush(30) == 0
    span = {"partition": 0, "start": 0, "end": 9}
    kafka.produce(redrives, [(b"mine/plan", json.dumps({"topic": "dlq", "spans": [span]}).encode())])
    assert [one.plan for one in read_plans({"bootstrap.servers": kafka.bootstrap}, redrives)] == ["mine"]


def test_plans_that_cannot_be_read_end_the_job_in_words(kafka, monkeypatch) -> None:
    from pipeline.errors import PipelineError
    from pipeline.ingest import kafka_source
    from pipeline.sending.plans import read_plans

    redrives = kafka.topic("redrives")
    theirs = opened(kafka, f"theirs-{redrives}", 60_000)
    theirs.produce(redrives, b"{}", b"theirs/progress")
    assert theirs.flush(30) == 0
    monkeypatch.setattr(kafka_source, "ANSWER_S", 1.0)
    with pytest.raises(PipelineError, match="nothing came for 1 s before 1; a transaction is open there"):
        read_plans({"bootstrap.servers": kafka.bootstrap}, redrives)
    theirs.abort_transaction(30)


def ended(state: str, plan_id: str) -> list[tuple[bytes, bytes]]:
    """The records of a plan over the whole partition that has looked at its first letter."""
    plan = {"topic": "dlq", "spans": [{"partition": 0, "start": 0, "end": 9}]}
    said = {"plan": plan, "progress": {"state": state, "positions": {"0": 1}}}
    return [(f"{plan_id}/{kind}".encode(), json.dumps(body).encode()) for kind, body in said.items()]


def test_who_sends_letters_again_leaves_to_plans_only_what_they_may_still_send() -> None:
    from pipeline.sending.plans import taken

    plans = [*ended("running", "a"), *ended("done", "b"), *ended("aborted", "c"), *ended("stopped", "d")]
    assert {(one.plan, one.end) for one in taken(plans)} == {("a", 9), ("b", 1), ("c", 1), ("d", 9)}
    assert {(one.plan, one.end) for one in taken(plans, again=True)} == {("a", 9), ("d", 9)}


def filled(warehouse, spark, values: list[bytes], source: list[Any]) -> Any:
    """Result of `rebuild` from ledger blocks and records of their source, on disk as `ingest` leaves them."""
    from pipeline import jobs
    from pipeline.ingest import ledger
    from pipeline.ingest.lifecycle import lifecycle
    from pipeline.ingest.stream import records_table
    from pipeline.ingest.topics import RECORDS

    frame = ledger_frame(spark, values)
    warehouse.write_batch(ledger.blocks(frame), "silver/blocks", 0, "settled_ms")
    warehouse.write_batch(ledger.entries(frame), "silver/entries", 0, "settled_ms")
    warehouse.write_batch(lifecycle(ledger.settlements(frame), None), "silver/lifecycle", 0, "settled_ms")
    rows = spark.createDataFrame(source, RECORDS)
    warehouse.write_batch(rows, records_table("orders-retry"), 0, "timestamp_ms")
    return jobs.rebuild(warehouse)


def came(offset: int, headers: Headers, value: bytes = b"\x00") -> tuple[Any, ...]:
    """A record of the source."""
    pairs = [(name, value and bytearray(value)) for name, value in headers]
    return ("orders-retry", 3, offset, NOW_MS, bytearray(b"k"), bytearray(value), pairs)


def test_an_overflow_is_made_again_of_ledger_and_sources(warehouse, spark) -> None:
    from pipeline.sending.schedule import messages
    from tests.pipeline.ledger_rows import emitted

    put = entries([(5, NOW_MS + 9), (6, NOW_MS + 8), (7, NOW_MS + 7)])
    headers: Headers = [("tickover-delay", b"1h"), ("mine", b"\xff"), ("tickover-id", b"order-5")]
    made = filled(warehouse, spark, [block(number=1, entries=put), block(settled=emitted(6, 1))], [came(5, headers)])
    assert (made["held"], made["without_payload"]) == (2, 1)
    rows = messages(spark.read.parquet(made["table"]), "reminders", "again", 0).collect()
    [row] = [row for row in rows if row.refused is None]
    assert (row.due_ms, row.id, bytes(row.key), bytes(row.value)) == (
        NOW_MS + 9, "orders-retry/3/5", b"k", b"\x00",
    )  # fmt: skip
    assert headers_in(row)[0] == ("mine", b"\xff")
    assert dict(headers_in(row))["tickover-id"] == b"order-5"
    [missing] = [row for row in rows if row.refused is not None]
    assert (missing.id, missing.value, missing.refused) == (
        "orders-retry/3/7",
        None,
        "payload: it was not ingested, and a null value would be a deletion",
    )


ERRORS: Headers = [("tickover-error-class", b"shop.Timeout"), ("tickover-error-message", b"no answer \xff")]
KEPT: Headers = [("mine", b"\xff"), ("mine", None), ("tickover-redrive-count", b"1"), ("tickover-of-mine", b"x")]


@pytest.mark.parametrize("counted_by", ["tickover", "its sender"])
def test_what_was_decided_about_a_held_record_travels_with_it(warehouse, spark, counted_by: str) -> None:
    """A delay topic emits what the first tickover would have emitted, with its time to expire and its partition."""
    from pipeline.sending.schedule import messages

    attempt = 2 if counted_by == "tickover" else 0
    put = entries([(5, NOW_MS + 90_000)])._replace(
        expires_ms=[NOW_MS + 95_000], target_partitions=[2], attempts=[attempt],
        first_failures_ms=[NOW_MS - 7 if attempt else -1],
    )  # fmt: skip
    counts: Headers = [
        ("tickover-attempt", b"1" if attempt else b"2"),
        ("tickover-first-failure", b"%d" % (NOW_MS - 7)),
    ]
    headers: Headers = [
        *KEPT, ("tickover-delay", b"90s"), ("tickover-origin", b"orders-retry/0/1"), *counts, *ERRORS,
        ("tickover-id", b"order-5"), ("tickover-job", b"job/run/0"),
    ]  # fmt: skip
    made = filled(warehouse, spark, [block(number=1, entries=put)], [came(5, headers)])
    [row] = messages(spark.read.parquet(made["table"]), "reminders", "again", 0).collect()
    assert row.refused is None
    [dead_letter] = {row.dead_letter for row in spark.read.parquet(made["table"]).collect()}
    assert dead_letter == "orders-dlq"

    now = decided_by_a_delay_policy(headers_in(row))
    assert (now.due_ms, now.target, now.target_partition, now.expires_ms) == (
        NOW_MS + 90_000, "orders", 2, NOW_MS + 95_000,
    )  # fmt: skip
    emitted = dict(emission_headers(now, b"reminders/0/"))
    del emitted["tickover-policy"]
    assert emitted == dict(
        [
            *KEPT, ("tickover-origin", b"orders-retry/0/1"), ("tickover-due", b"%d" % (NOW_MS + 90_000)),
            ("tickover-attempt", b"2"), ("tickover-first-failure", b"%d" % (NOW_MS - 7)), *ERRORS,
            ("tickover-id", b"order-5"),
        ]
    )  # fmt: skip


def decided_by_a_delay_policy(headers: Headers) -> Held:
    """The record with these headers as a delay topic holds it, under a policy that would spread it."""
    from pipeline.reports.backtest import policy_table

    text = "{name: reminders, match: {topics: [reminders]}, delay: {spread: 1h}, target: {allow: ['*']}}"
    parts = split(headers)
    facts = Facts("reminders", 0, 1, NOW_MS, parts.user, dict(parts.controls))
    hold = decide(facts, policy_table(text, "policies"))
    assert isinstance(hold, Hold)
    return Held(
        hold.due_ms, 1, hold.target, hold.target_partition, b"k", b"v", parts.user, hold.policy, parts.origin, 0, -1,
        parts.counted + parts.trailer, hold.expires_ms, hold.dead_letter, 0,
    )  # fmt: skip


def test_what_a_topic_had_before_it_was_made_anew_is_not_held(warehouse, spark) -> None:
    """Offsets of the former topic are those of other records now."""
    old = block(topic_id="old", number=1, entries=entries([(5, NOW_MS + 9)]))
    new = block(topic_id="new", number=1, entries=entries([(6, NOW_MS + 9)]))
    made = filled(warehouse, spark, [old, new], [came(5, []), came(6, [])])
    assert [row.id for row in spark.read.parquet(made["table"]).collect()] == ["orders-retry/3/6"]
