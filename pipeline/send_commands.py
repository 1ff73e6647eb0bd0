"""The jobs that send, as commands: bulk scheduling, redriving, and a rebuild with the two that send what it found."""

import re
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from pipeline.errors import PipelineError
from pipeline.options import (
    BootstrapOption,
    GroupOption,
    KafkaOption,
    SparkOption,
    WarehouseOption,
    kafka_place,
    open_ingested,
    open_warehouse,
    show,
)

app: Final = typer.Typer()
JobOption = Annotated[str, typer.Option(help="A name of your own; the same name goes on where it was.")]
RateOption = Annotated[float, typer.Option(min=0, help="Records a second at most; 0: no limit.")]
SliceOption = Annotated[int, typer.Option(min=1, help="Records between two looks at the stop switch.")]
StopOption = Annotated[bool, typer.Option("--stop", help="Have a run of this job end after its slice, and do no more.")]
# A repeated task would send again.
ONCE: Final = ["spark.task.maxFailures=1", "spark.speculation=false", "spark.stage.maxConsecutiveAttempts=1"]

NO_MARKS: Final = (
    "there is no topic {}, and nobody would know which letters were sent: tickover makes it when it starts, and "
    "`tickover doctor` prints the command; name another one by --redriven, or say `--redriven none`"
)


def run_errand(place: Any, kafka: Any, errand: Any, rows: Any) -> None:
    """Send, show the counts, and fail when rows have failed."""
    from pipeline.sending.dispatch import dispatch

    came = dispatch(place, kafka, errand, rows)
    show(came)
    if came["rows"].get("failed"):
        raise PipelineError(f"{came['rows']['failed']} rows failed, see {place.path(errand.table)}: run it again")


@app.command()
def schedule(
    warehouse: WarehouseOption,
    job: JobOption,
    source: Annotated[str, typer.Option(help="The delay topic to send to.")],
    rows: Annotated[str, typer.Option("--input", help="Rows: topic, due, and key, value, headers, id as you like.")],
    form: Annotated[str, typer.Option("--format", help="parquet, csv, json, or delta where Spark has it.")] = "parquet",
    bootstrap_servers: BootstrapOption = "localhost:9092",
    spread: Annotated[str, typer.Option(help="Spread due times over so long, as 10m.")] = "0",
    rate: RateOption = 0.0,
    slice_rows: SliceOption = 100_000,
    stop: StopOption = False,
    kafka_option: KafkaOption = None,
    spark: SparkOption = None,
) -> None:
    """Rows of a file as delayed messages, each once however often it runs; a report row for row in gold/schedule."""
    from policies.duration import parse_typed_duration

    try:
        spread_ms = parse_typed_duration(spread)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--spread") from error
    place = open_warehouse(warehouse, [*ONCE, *(spark or [])])
    from pipeline.sending import dispatch
    from pipeline.sending.schedule import MARK, mark_of, messages, read_rows

    errand = dispatch.Errand("schedule", job_name(job), MARK, rate, slice_rows)
    if stop:
        dispatch.stop(place, errand)
        return
    kafka = kafka_place(bootstrap_servers, kafka_option, "auto")
    frame = read_rows(place.spark, form, rows)
    run_errand(place, kafka, replace(errand, mark=mark_of(frame)), messages(frame, source, job, spread_ms))


def job_name(text: str) -> str:
    """A name that may stand in a path and an id. Raises a usage error for another."""
    if not re.fullmatch("[A-Za-z0-9._-]{1,64}", text) or text.startswith("."):
        raise typer.BadParameter("letters, digits, and . _ -, at most 64", param_hint="--job")
    return text


@app.command()
def redrive(
    warehouse: WarehouseOption,
    job: JobOption,
    topic: Annotated[list[str], typer.Option(help="A dead-letter topic that was ingested; may be repeated.")],
    target: Annotated[
        str,
        typer.Option(
            help="Where to; left out: quarantined ones to their source, those without a policy from T-dlq to T."
        ),
    ] = "",
    reason: Annotated[str, typer.Option(help="Only these, as in tickover-reason.")] = "",
    fingerprint: Annotated[str, typer.Option(help="Only failures of this kind.")] = "",
    error_class: Annotated[str, typer.Option(help="Only these, a glob.")] = "",
    policy: Annotated[str, typer.Option(help="Only letters of this policy; the name.")] = "",
    since_ms: Annotated[int, typer.Option(help="Only from this time on, epoch ms.")] = 0,
    until_ms: Annotated[int, typer.Option(help="Only before this time, epoch ms.")] = 0,
    loops_max: Annotated[int, typer.Option(min=1, help="Pass over what was redriven so often.")] = 3,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be sent.")] = False,
    group: GroupOption = "tickover",
    again: Annotated[
        bool, typer.Option("--again", help="Also letters that a redrive or another job has sent.")
    ] = False,
    redrives: Annotated[
        str, typer.Option(help="Topic of the sidecar's redrives, if it isn't the group's; `none`: there is none.")
    ] = "",
    redriven: Annotated[
        str, typer.Option(help="Topic that says what was sent again, if it isn't the group's; `none`: there is none.")
    ] = "",
    bootstrap_servers: BootstrapOption = "localhost:9092",
    rate: RateOption = 0.0,
    slice_rows: SliceOption = 10_000,
    stop: StopOption = False,
    kafka_option: KafkaOption = None,
    spark: SparkOption = None,
) -> None:
    """Send dead letters again, by filter, each once however often it runs; a report in gold/redrive."""
    place = open_warehouse(warehouse, [*ONCE, *(spark or [])])
    from pipeline import jobs
    from pipeline.sending import dispatch
    from pipeline.sending.plans import read_plans
    from pipeline.sending.redrive import MARK, Choice, Terms

    errand = dispatch.Errand("redrive", job_name(job), MARK, rate, slice_rows)
    if stop:
        dispatch.stop(place, errand)
        return
    choice = Choice(reason, fingerprint, error_class, policy, since_ms, until_ms)
    kafka = kafka_place(bootstrap_servers, kafka_option, "auto")
    # Marks before plans: what a plan has sent between the two is of a plan that is seen.
    marks = redriven or f"tickover.{group}.redriven"
    known = None if redriven == "none" else jobs.redriven(place, kafka.client, marks, topic)
    if known is None and redriven != "none" and not plan:
        raise PipelineError(NO_MARKS.format(marks))
    marking, marked = known or (None, [])
    plans = [] if redrives == "none" else read_plans(kafka.client, redrives or f"tickover.{group}.redrives", again)
    rows = jobs.redrive_rows(place, topic, choice, Terms(target, job, loops_max), plans, [] if again else marked)
    if plan:
        show(jobs.redrive_plan(rows))
        return
    run_errand(place, kafka, replace(errand, marking=marking), rows)


@app.command()
def rebuild(warehouse: WarehouseOption, spark: SparkOption = None) -> None:
    """Find what has no outcome yet, from ledger and sources: gold/overflow for `schedule`, the rest for `resend`."""
    place = open_ingested(warehouse, spark)
    from pipeline import jobs

    show(jobs.rebuild(place))


@app.command()
def resend(
    warehouse: WarehouseOption,
    job: JobOption,
    bootstrap_servers: BootstrapOption = "localhost:9092",
    rate: RateOption = 0.0,
    slice_rows: SliceOption = 100_000,
    stop: StopOption = False,
    kafka_option: KafkaOption = None,
    spark: SparkOption = None,
) -> None:
    """Send what `rebuild` found undecided to its sources as it came, each once; a report in gold/resend."""
    place = open_warehouse(warehouse, [*ONCE, *(spark or [])])
    from pipeline import jobs
    from pipeline.sending import dispatch
    from pipeline.sending.resend import MARK

    errand = dispatch.Errand("resend", job_name(job), MARK, rate, slice_rows)
    if stop:
        dispatch.stop(place, errand)
        return
    run_errand(place, kafka_place(bootstrap_servers, kafka_option, "auto"), errand, jobs.resend_rows(place))
