"""`tickover pipeline <job>`: each command starts Spark, runs one job, and prints what came of it as JSON.

What needs Spark is imported by the command that runs, so that `--help` and other commands work without it.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline.errors import PipelineError

app: Final = typer.Typer(
    help="Jobs on Spark over the ledger and the topics.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WarehouseOption = Annotated[str, typer.Option(help="Where the tables are: a directory, s3a://..., hdfs://...")]
BootstrapOption = Annotated[
    str, typer.Option(envvar="TICKOVER_KAFKA__BOOTSTRAP_SERVERS", help="host:port list of the brokers.")
]
GroupOption = Annotated[str, typer.Option(envvar="TICKOVER_GROUP", help="Whose ledger: tickover.<group>.ledger.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="A topic; may be repeated.")]
KafkaOption = Annotated[
    list[str] | None, typer.Option("--kafka-option", metavar="KEY=VALUE", help="A setting of the Kafka client.")
]
SparkOption = Annotated[list[str] | None, typer.Option("--spark", metavar="KEY=VALUE", help="A setting of Spark.")]
ConnectorOption = Annotated[
    str, typer.Option(help="auto, spark (its Kafka connector, by --spark spark.jars.packages=...), or python.")
]


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """`key=value` options as a mapping. Raises a usage error for one without `=`."""
    found = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        found[name] = value
    return found


def open_warehouse(root: str, spark: list[str] | None) -> Any:
    """The warehouse with a Spark session. Raises PipelineError when Spark can't be started."""
    from pipeline.session import spark_session

    session = spark_session(pairs(spark, "--spark"))
    from pipeline.tables import Warehouse

    return Warehouse(session, root)


def kafka_place(bootstrap: str, options: list[str] | None, connector: str) -> Any:
    """The cluster that a job reads."""
    from pipeline.kafka import KafkaPlace

    if connector not in ("auto", "spark", "python"):
        raise typer.BadParameter("auto, spark or python", param_hint="--connector")
    return KafkaPlace(bootstrap, pairs(options, "--kafka-option"), connector)  # type: ignore[arg-type]


def show(document: dict[str, Any]) -> None:
    """Data on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Words on stderr."""
    print(text, file=sys.stderr)


def read_policies(paths: list[str]) -> dict[str, str]:
    """Policies files by name. Raises PipelineError for one that can't be read."""
    try:
        return {path: Path(path).read_text(encoding="utf-8") for path in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"policies file: {error}") from error


@app.command()
def ingest(
    warehouse: WarehouseOption,
    bootstrap_servers: BootstrapOption = "localhost:9092",
    group: GroupOption = "tickover",
    ledger: Annotated[str, typer.Option(help="The ledger topic, if it isn't the group's.")] = "",
    topic: TopicOption = None,
    every: Annotated[float, typer.Option(min=0, help="Go on, a round every so many seconds; 0: one round.")] = 0.0,
    connector: ConnectorOption = "auto",
    kafka_option: KafkaOption = None,
    spark: SparkOption = None,
) -> None:
    """Take the ledger, and topics if named (sources, dead letters, targets), into tables; run again, it goes on."""
    place = open_warehouse(warehouse, spark)
    from threading import Event

    from pipeline.ingest import ingest as take_in

    kafka = kafka_place(bootstrap_servers, kafka_option, connector)
    while True:
        came = take_in(place, kafka, ledger or f"tickover.{group}.ledger", topic or [])
        show(came.document())
        if came.newer:
            raise PipelineError(
                f"{came.newer} blocks are of a later version: upgrade, then delete silver and run again"
            )
        if came.undecodable:
            say(f"{came.undecodable} ledger records are no blocks: see silver/blocks, column problem")
        if not every:
            return
        Event().wait(every)


@app.command()
def reconcile(
    warehouse: WarehouseOption,
    export: Annotated[str, typer.Option(help="Parquet of what Redis holds: topic, partition, offset.")] = "",
    spark: SparkOption = None,
) -> None:
    """Prove that what was accepted is settled or held, once and not early; status 1 and its name for what isn't."""
    place = open_warehouse(warehouse, spark)
    from pipeline import jobs

    came = jobs.reconcile(place, export)
    show(came)
    if came["faults"]:
        raise PipelineError(f"{sum(came['faults'].values())} faults, all of them in {place.path('gold/reconcile')}")


@app.command()
def backtest(
    warehouse: WarehouseOption,
    policies: Annotated[list[str], typer.Option(help="A policies file; may be repeated, to compare them.")],
    topic: Annotated[list[str], typer.Option(help="A retry topic that was ingested; may be repeated.")],
    spark: SparkOption = None,
) -> None:
    """Replay recorded failures under other policies: deliveries, rescued, dead, time to success, peak load."""
    files = read_policies(policies)
    place = open_warehouse(warehouse, spark)
    from pipeline import jobs
    from policies.errors import PolicyFileError

    try:
        show(jobs.backtest(place, topic, files))
    except PolicyFileError as error:
        raise PipelineError(str(error)) from error


OutOption = Annotated[Path, typer.Option(help="Where the pages go.")]
HoursOption = Annotated[int, typer.Option(min=1, max=24 * 31, help="How far a forecast looks, in hours.")]


def make_reports(root: str, names: list[str], out: Path, horizon: Any, spark: list[str] | None) -> None:
    """Compute reports and write their pages."""
    place = open_warehouse(root, spark)
    from pipeline.reporting import report as make

    show(make(place, names, out, horizon))


@app.command()
def report(
    warehouse: WarehouseOption,
    name: Annotated[
        list[str] | None, typer.Option(help="funnel, lateness, triage, herd, storms or forecast; all if not given.")
    ] = None,
    out: OutOption = Path("reports"),
    capacity: Annotated[int, typer.Option(min=0, help="Records a minute that a target can take.")] = 60_000,
    new_hours: Annotated[float, typer.Option(min=0, help="Failures first seen in the last hours are new.")] = 24.0,
    hours: HoursOption = 6,
    spark: SparkOption = None,
) -> None:
    """Gold tables, each with a page: retry funnel, lateness, dead letters, herd calendar, retry storms, forecast."""
    known = ("funnel", "lateness", "triage", "herd", "storms", "forecast")
    wanted = name or list(known)
    if unknown := sorted(set(wanted) - set(known)):
        raise typer.BadParameter(f"no report {', '.join(unknown)}", param_hint="--name")
    make_reports(warehouse, wanted, out, horizon_of(capacity, new_hours, hours), spark)


@app.command()
def forecast(
    warehouse: WarehouseOption, out: OutOption = Path("reports"), hours: HoursOption = 6, spark: SparkOption = None
) -> None:
    """Due load of the next hours, minute by minute: what is held, and what is likely to arrive."""
    make_reports(warehouse, ["forecast"], out, horizon_of(0, 0.0, hours), spark)


def horizon_of(capacity: int, new_hours: float, hours: int) -> Any:
    """The times of a report, from now."""
    from pipeline.horizon import Horizon

    now_ms = time.time_ns() // 1_000_000
    return Horizon(now_ms, now_ms - int(new_hours * 3_600_000), hours, capacity)


JobOption = Annotated[str, typer.Option(help="A name of your own; the same name goes on where it was.")]
RateOption = Annotated[float, typer.Option(min=0, help="Records a second at most; 0: no limit.")]
SliceOption = Annotated[int, typer.Option(min=1, help="Records between two looks at the stop switch.")]
StopOption = Annotated[bool, typer.Option("--stop", help="Have a run of this job end after its slice, and do no more.")]
# A repeated task would send again.
ONCE: Final = ["spark.task.maxFailures=1", "spark.speculation=false"]


def run_errand(place: Any, kafka: Any, errand: Any, rows: Any) -> None:
    """Send, show the counts, and fail when rows have failed."""
    from pipeline.dispatch import dispatch

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
    from policies.duration import parse_duration

    try:
        spread_ms = parse_duration(spread)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--spread") from error
    place = open_warehouse(warehouse, [*ONCE, *(spark or [])])
    from pipeline import dispatch
    from pipeline.schedule import MARK, messages

    errand = dispatch.Errand("schedule", job_name(job), MARK, (source,), rate, slice_rows)
    if stop:
        dispatch.stop(place, errand)
        return
    reader = place.spark.read.format(form)
    frame = (reader.option("header", "true") if form == "csv" else reader).load(rows)
    run_errand(
        place, kafka_place(bootstrap_servers, kafka_option, "auto"), errand, messages(frame, source, job, spread_ms)
    )


def job_name(text: str) -> str:
    """A name that may stand in a path and an id. Raises a usage error for another."""
    if not re.fullmatch("[A-Za-z0-9._-]{1,64}", text) or text.startswith("."):
        raise typer.BadParameter("letters, digits, and . _ -, at most 64", param_hint="--job")
    return text
