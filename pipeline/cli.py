"""`tickover pipeline <job>`: each command starts Spark, runs one job, and prints what came of it as JSON.

What needs Spark is imported by the command that runs, so that `--help` and other commands work without it. Here are the
jobs that read; those that send are in send_commands.py.
"""

import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pipeline import send_commands
from pipeline.errors import PipelineError
from pipeline.options import (
    BootstrapOption,
    ConnectorOption,
    EveryOption,
    GroupOption,
    KafkaOption,
    LedgerOption,
    SparkOption,
    TopicOption,
    WarehouseOption,
    kafka_place,
    open_ingested,
    open_warehouse,
    rounds,
    say,
    show,
    tell,
)

app: Final = typer.Typer(
    help="Jobs on Spark over the ledger and the topics.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(send_commands.app)


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
    ledger: LedgerOption = "",
    topic: TopicOption = None,
    every: EveryOption = 0.0,
    connector: ConnectorOption = "auto",
    kafka_option: KafkaOption = None,
    table_format: Annotated[
        str, typer.Option(help="Of silver and gold in a new warehouse: parquet, or delta where Spark has it.")
    ] = "",
    spark: SparkOption = None,
) -> None:
    """Take the ledger, and topics if named (sources, dead letters, targets), into tables; run again, it goes on."""
    place = open_warehouse(warehouse, spark, table_format)
    from pipeline.ingest.ingest import ingest as take_in

    kafka = kafka_place(bootstrap_servers, kafka_option, connector)
    for _ in rounds(every):
        came = take_in(place, kafka, ledger or f"tickover.{group}.ledger", topic or [])
        show(came.document())
        if came.newer:
            raise PipelineError(
                f"{came.newer} blocks are of a later version: upgrade, then delete silver and run again"
            )
        if came.undecodable:
            say(f"{came.undecodable} ledger records are no blocks: see silver/blocks, column problem")


@app.command()
def storms(
    warehouse: WarehouseOption,
    bootstrap_servers: BootstrapOption = "localhost:9092",
    group: GroupOption = "tickover",
    ledger: LedgerOption = "",
    every: EveryOption = 0.0,
    connector: ConnectorOption = "auto",
    kafka_option: KafkaOption = None,
    spark: SparkOption = None,
) -> None:
    """Tell of retry storms while they happen, straight from the ledger: a line of JSON for each, and a row, once."""
    place = open_warehouse(warehouse, spark)
    from pipeline.reports.storms import watch

    kafka = kafka_place(bootstrap_servers, kafka_option, connector)
    for _ in rounds(every):
        unseen = watch(place, kafka, ledger or f"tickover.{group}.ledger", tell)
        for part in unseen.lost:
            say(f"retention took {part.topic}/{part.partition} from {part.start} to {part.end} before it was judged")
        if unseen.newer:
            raise PipelineError(f"{unseen.newer} blocks are of a later version, and were not judged: upgrade")
        if unseen.undecodable:
            say(f"{unseen.undecodable} ledger records are no blocks: see ingest")


@app.command()
def compact(
    warehouse: WarehouseOption,
    grace: Annotated[str, typer.Option(help="How long readers that have begun keep the old files, as 1h.")] = "1h",
    spark: SparkOption = None,
) -> None:
    """Write small batches of the tables together, beside readers; one run at a time, safe to kill."""
    from policies.duration import parse_typed_duration

    try:
        grace_ms = parse_typed_duration(grace)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--grace") from error
    place = open_ingested(warehouse, spark)
    from pipeline import jobs

    show(jobs.compact(place, time.time_ns() // 1_000_000, grace_ms))


@app.command()
def reconcile(
    warehouse: WarehouseOption,
    export: Annotated[
        str, typer.Option(help="What Redis holds: a file of `tickover overflow export`, older than the last ingest.")
    ] = "",
    spark: SparkOption = None,
) -> None:
    """Prove that what was accepted is settled or held, once and not early; status 1 and its name for what isn't."""
    place = open_ingested(warehouse, spark)
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
    place = open_ingested(root, spark)
    from pipeline.reports.reporting import report as make

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
    from pipeline.reports.horizon import Horizon

    now_ms = time.time_ns() // 1_000_000
    return Horizon(now_ms, now_ms - int(new_hours * 3_600_000), hours, capacity)
