"""A letter that a job or a redrive has sent is left out by all later ones, unless they say that it is meant again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.errors import PipelineError
from sidecar.kafka.topic_follower import TopicReader
from sidecar.kafka.topics import TopicIds
from sidecar.model.record import Place
from sidecar.model.redrive_marks import Block, Kept, Marks
from sidecar.operations.dead_letters.redriven_log import RedrivenLog
from tests.services.kafka import Kafka
from tests.services.site import headers_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LETTERS = 7
PARTITIONS = 2
PLACES = [(partition, offset) for partition in range(PARTITIONS) for offset in range(LETTERS)]
LARGE = 3


class Estate:
    """A dead-letter topic that was ingested, and where what was sent again is noted."""

    def __init__(self, kafka: Kafka, warehouse: Any) -> None:
        from pipeline.ingest.kafka import KafkaPlace

        self.kafka = kafka
        self.warehouse = warehouse
        self.place = KafkaPlace(kafka.bootstrap)
        self.dlq, self.marks = kafka.topic("orders-dlq", PARTITIONS), kafka.topic("redriven")
        self.target = kafka.topic("orders", max_message_bytes=2_000)
        headers = [("tickover-reason", b"attempts_exhausted")]
        value = {LARGE: b"v" * 5_000}
        letters = [(b"k", value.get(offset, b"v"), headers, 0, partition) for partition, offset in PLACES]
        kafka.produce(self.dlq, letters)
        self.ingest()

    def ingest(self) -> None:
        from pipeline.ingest.stream import records_table, stream_topic

        stream_topic(self.warehouse, self.place, self.dlq, records_table(self.dlq))

    def run(self, job: str, target: str = "", again: bool = False) -> dict[str, int]:
        """As the command does; the states of the letters."""
        from pipeline import jobs
        from pipeline.sending.dispatch import Errand, dispatch
        from pipeline.sending.redrive import MARK, Choice, Terms

        known = jobs.redriven(self.warehouse, self.place.client, self.marks, [self.dlq])
        assert known is not None
        marking, marked = known
        terms = Terms(target or self.target, job, 3)
        rows = jobs.redrive_rows(self.warehouse, [self.dlq], Choice(), terms, [], [] if again else marked)
        errand = replace(Errand("redrive", job, MARK, slice_rows=5), marking=marking)
        states: dict[str, int] = dispatch(self.warehouse, self.place, errand, rows)["rows"]
        return states

    @contextmanager
    def sidecar(self) -> Iterator[RedrivenLog]:
        """Log of redriven letters, as each replica has it."""
        client = {"bootstrap.servers": self.kafka.bootstrap}
        log = RedrivenLog(TopicReader(client), self.marks, TopicIds(client).of)
        log.start()
        try:
            yield log
        finally:
            log.stop()

    def sent_by(self) -> dict[tuple[int, int], str]:
        """By letter: what the sidecar says who sent it last."""
        with self.sidecar() as log:
            find = log.of([self.dlq])
            found = {at: find(Place(self.dlq, *at)) for at in PLACES}
        return {at: sent.plan for at, sent in found.items() if sent is not None}

    def came(self, topic: str) -> list[tuple[int, int]]:
        """The letters that came to a topic, each as often as it came."""
        sources = [dict(headers_of(one))["tickover-redrive-source"] or b"" for one in self.kafka.read_all(topic)]
        return sorted((int(p), int(o)) for _, p, o in (source.decode().split("/") for source in sources))


@pytest.fixture
def estate(kafka: Kafka, warehouse: Any) -> Estate:
    return Estate(kafka, warehouse)


def test_what_a_job_has_sent_is_left_out_by_other_jobs_and_by_the_sidecar(
    estate: Estate,
) -> None:
    small = [at for at in PLACES if at[1] != LARGE]
    assert estate.run("first") == {"sent": len(small), "failed": PARTITIONS}
    assert estate.came(estate.target) == small
    by = estate.sent_by()
    assert sorted(by) == small
    assert {plan.partition("/")[0] for plan in by.values()} == {"first"}

    second = estate.kafka.topic("orders")
    assert estate.run("second", second) == {"sent": PARTITIONS, "refused": len(small)}
    assert estate.came(second) == [at for at in PLACES if at not in small]
    assert sorted(estate.sent_by()) == PLACES
    assert estate.run("third", second) == {"refused": len(PLACES)}

    third = estate.kafka.topic("orders")
    assert estate.run("third", third, again=True) == {"sent": len(PLACES)}
    assert estate.came(third) == PLACES
    assert estate.run("third", third, again=True) == {"sent": len(PLACES)}
    assert estate.came(third) == PLACES  # within a job each goes once all the same


def test_each_task_sends_a_stretch_of_neighbours(estate: Estate) -> None:
    """Scattered letters would make nearly as many records as there are letters, and each replica has them in memory."""
    assert estate.run("first", estate.kafka.topic("orders")) == {"sent": len(PLACES)}
    by = estate.sent_by()
    stretches = [plan for plan, _ in groupby(by[at] for at in PLACES)]
    assert len(stretches) == len(set(stretches)) > 1


def test_what_the_sidecar_has_marked_is_left_out(estate: Estate) -> None:
    theirs = [(0, 1), (1, 5)]
    with estate.sidecar() as log:
        records = log.pen("plan-1", estate.dlq).records([Place(estate.dlq, *at) for at in theirs], 1)
    estate.kafka.produce(estate.marks, [(record.key, record.value) for record in records])
    former = Block("former", estate.dlq, 0, 0)  # of a topic of this name that is no more
    garbage = [(b"garbage", b"x"), (None, b"x")]
    estate.kafka.produce(estate.marks, [(former.key("x"), Kept(0b1, 1, 1).value()), *garbage])
    target = estate.kafka.topic("orders")
    assert estate.run("job", target) == {"sent": len(PLACES) - 2, "refused": 2}
    assert estate.came(target) == [at for at in PLACES if at not in theirs]


def test_letters_of_a_topic_that_was_made_anew_are_not_taken_for_those_of_the_new_one(estate: Estate) -> None:
    estate.kafka.admin.delete_topics([estate.dlq])[estate.dlq].result(30)
    estate.kafka.create_topic(estate.dlq, PARTITIONS)
    assert estate.run("job", estate.kafka.topic("orders")) == {"sent": len(PLACES)}
    assert estate.sent_by() == {}
    assert estate.run("other", estate.kafka.topic("orders")) == {"refused": len(PLACES)}


def test_tables_that_do_not_say_which_topic_they_are_of_are_refused(estate: Estate) -> None:
    from pipeline.ingest.stream import TOPIC_ID, _checkpoint, records_table

    checkpoint = _checkpoint(records_table(estate.dlq))
    estate.warehouse.write_text("", checkpoint, TOPIC_ID)
    with pytest.raises(PipelineError, match=f"run ingest with --topic {estate.dlq}"):
        estate.run("job")
    estate.ingest()
    assert estate.run("job", estate.kafka.topic("orders")) == {"sent": len(PLACES)}


def test_the_command_leaves_out_what_was_sent_and_what_plans_have_unless_it_is_told_otherwise(estate: Estate) -> None:
    from pipeline.cli import app

    kafka, target, redrives = estate.kafka, estate.kafka.topic("orders"), estate.kafka.topic("redrives")
    plan = {"topic": estate.dlq, "spans": [{"partition": 0, "start": 0, "end": LETTERS}]}
    progress = {"state": "done", "positions": {"0": LETTERS}}
    said = (("plan", plan), ("progress", progress))
    kafka.produce(redrives, [(f"mine/{kind}".encode(), json.dumps(body).encode()) for kind, body in said])
    names = {
        "--warehouse": estate.warehouse.root, "--bootstrap-servers": kafka.bootstrap, "--topic": estate.dlq,
        "--target": target, "--redrives": redrives, "--group": "nobody",
    }  # fmt: skip
    common = ["redrive", *(word for pair in names.items() for word in pair)]

    def told(job: str, *more: str) -> Any:
        ended = CliRunner().invoke(app, [*common, "--job", job, *more], catch_exceptions=False)
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)

    with pytest.raises(PipelineError, match=r"there is no topic tickover\.nobody\.redriven"):
        told("first")
    assert told("first", "--plan")["letters"] == LETTERS
    mine = ("--redriven", estate.marks)
    assert told("first", *mine)["rows"] == {"sent": LETTERS, "refused": LETTERS}
    counts = {"redriven": LETTERS, "planned mine": LETTERS}
    assert {kind["refused"]: kind["letters"] for kind in told("second", *mine, "--plan")["kinds"]} == counts
    assert told("second", *mine, "--plan", "--again")["letters"] == len(PLACES)
    assert told("second", "--redriven", "none", "--plan")["letters"] == LETTERS


def test_without_a_topic_of_marks_nothing_is_marked(estate: Estate) -> None:
    from pipeline import jobs

    absent = f"no-{estate.marks}"
    assert jobs.redriven(estate.warehouse, estate.place.client, absent, [estate.dlq]) is None
    assert absent not in estate.kafka.admin.list_topics(timeout=30).topics


def test_every_mark_is_found_at_its_offset(spark: Any) -> None:
    from pipeline.sending.marking import marked_of
    from pipeline.sending.redrive import with_marks

    offsets = [0, 1, 62, 63, 64, 65, 127, 4_031, 4_032, 4_094, 4_095, 4_096, 4_159, 8_191, 8_192, 3_000_000_000]
    marks = Marks()
    for number in {offset // 4_096 for offset in offsets}:
        mine = [offset for offset in offsets if offset // 4_096 == number]
        for plan, some in (("a", mine[::3]), ("b", mine[1::3])):
            marks.apply(Block("id", "dlq", 1, number).key(plan), Kept(0, 1, 1).plus(some, 1).value())
    every = [(topic, p, offset) for topic in ("dlq", "other") for p in (0, 1) for offset in offsets]
    frame = spark.createDataFrame(every, "topic string, partition int, offset bigint")
    found = with_marks(frame, marked_of(marks, {"dlq": "id", "other": "id"})).collect()
    assert len(found) == len(every)
    for row in found:
        place = Place(row.topic, row.partition, row.offset)
        assert row.redriven == (marks.find("id", place) is not None), place
    assert 0 < sum(row.redriven for row in found) < len(offsets)


def test_slices_of_letters_are_stretches_of_neighbours(spark: Any) -> None:
    from pyspark.sql import functions as F

    from pipeline.sending.dispatch import _numbered

    letter = F.expr("named_struct('topic', 'dlq', 'partition', CAST(id % 2 AS INT), 'offset', id DIV 2 * 3)")
    rows = spark.range(1_000).withColumn("letter", letter)
    numbered = _numbered(rows, 10, 100).select("slice", "letter").collect()
    assert len(numbered) == 1_000
    slices = {row.slice: [tuple(one.letter) for one in numbered if one.slice == row.slice] for row in numbered}
    assert sorted(slices) == list(range(10))
    assert max(map(len, slices.values())) < 200
    in_order = [place for number in sorted(slices) for place in sorted(slices[number])]
    assert in_order == sorted(in_order)
