"""Common parts of the jobs' commands: their options, and what they do first and last."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final

import typer

from pipeline.errors import PipelineError
from sidecar.model.foreign_text import LINES, visible, visible_json

FILE_SUFFIX: Final = "_file"

WarehouseOption = Annotated[str, typer.Option(help="Where the tables are: a directory, s3a://..., hdfs://...")]
BootstrapOption = Annotated[
    str, typer.Option(envvar="TICKOVER_KAFKA__BOOTSTRAP_SERVERS", help="host:port list of the brokers.")
]
GroupOption = Annotated[str, typer.Option(envvar="TICKOVER_GROUP", help="Whose ledger: tickover.<group>.ledger.")]
LedgerOption = Annotated[str, typer.Option(help="The ledger topic, if it isn't the group's.")]
EveryOption = Annotated[float, typer.Option(min=0, help="Go on, a round every so many seconds; 0: one round.")]
TopicOption = Annotated[list[str] | None, typer.Option("--topic", help="A topic; may be repeated.")]
KafkaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-option",
        metavar="KEY=VALUE",
        help="A setting of the Kafka client; KEY_file=FILE reads it from a file.",
    ),
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
            raise typer.BadParameter("each must be KEY=VALUE", param_hint=option)  # which may be a password
        found[name] = value
    return found


def open_warehouse(root: str, spark: list[str] | None, table_format: str = "") -> Any:
    """The warehouse with a Spark session. Raises PipelineError when Spark can't be started, or not read it."""
    from pipeline.session import check_installed, spark_session

    check_installed()
    from pipeline.warehouse.tables import FORMATS, Warehouse

    if table_format not in ("", *FORMATS):
        raise typer.BadParameter(" or ".join(FORMATS), param_hint="--table-format")
    session = spark_session(pairs(spark, "--spark"))
    return Warehouse.open(session, root, table_format)


def open_ingested(root: str, spark: list[str] | None) -> Any:
    """A warehouse that has a ledger. Raises PipelineError for any other: a wrong path has no findings either."""
    warehouse = open_warehouse(root, spark)
    from pipeline.ingest.stream import BLOCKS_TABLE

    if not warehouse.batches(BLOCKS_TABLE):
        raise PipelineError(
            f"no ledger was ingested at {root}: run `tickover pipeline ingest --warehouse {root}` first"
        )
    return warehouse


def kafka_place(bootstrap: str, options: list[str] | None, connector: str) -> Any:
    """The cluster that a job reads."""
    from pipeline.ingest.kafka import KafkaPlace

    if connector not in ("auto", "spark", "python"):
        raise typer.BadParameter("auto, spark or python", param_hint="--connector")
    return KafkaPlace(bootstrap, kafka_options(options), connector)  # type: ignore[arg-type]


def kafka_options(texts: list[str] | None) -> dict[str, str]:
    """Settings of the Kafka client. `sasl.password_file=FILE` is `sasl.password`, read from there, since everybody on
    the machine sees the arguments of programs. Raises PipelineError for a file that can't be read.
    """
    return dict(_opened(*pair) for pair in pairs(texts, "--kafka-option").items())


def _opened(name: str, value: str) -> tuple[str, str]:
    if not name.endswith(FILE_SUFFIX):
        return name, value
    try:
        return name.removesuffix(FILE_SUFFIX), Path(value).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise PipelineError(f"--kafka-option {name}: the file can't be read: {reason}") from None


def show(document: dict[str, Any]) -> None:
    """Data on stdout."""
    print(visible_json(json.dumps(document, indent=2, ensure_ascii=False)))


def rounds(every_s: float) -> Iterator[None]:
    """Once, or with a time again and again, so long between."""
    yield
    while every_s:
        Event().wait(every_s)
        yield


def tell(document: dict[str, Any]) -> None:
    """Data on stdout, a line of it: it has come now, and somebody may be waiting."""
    print(visible_json(json.dumps(document, ensure_ascii=False)), flush=True)


def say(text: str) -> None:
    """Words on stderr."""
    print(visible(text, LINES), file=sys.stderr)
