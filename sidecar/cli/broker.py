"""`tickover broker`, the reference broker as a process of its own; `broker lab` measures what settings cost with it."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from policies.errors import FormatError
from policies.fields import parse_size
from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Failure, Form, OutputDefault, OutputOption, Status, output_before, say, show
from sidecar.service.logs import configure_logs, log_uncaught

PORT_MAX: Final = 65_535
FOR_EVER_MS: Final = 1 << 62
REFERENCE: Final = "reference"
GIVEN: Final = "given"
REPLICAS_MAX: Final = 3
CASES_MAX: Final = 200
NUMBER_MAX: Final = 1 << 30
RECORD_BYTES_MAX: Final = 900_000

lab_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The latency laboratory.")
lab_app.callback()(output_before)
app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lab_app, name="lab")


@app.callback()
def broker(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=PORT_MAX, help="Port of the first broker, others follow; 0 takes free ones.")
    ] = 9092,
    brokers: Annotated[int, typer.Option(min=1, max=3, help="Number of brokers in this process.")] = 1,
    data: Annotated[
        Path | None, typer.Option(help="Directory that keeps topics; default: a temporary one, removed at the end.")
    ] = None,
    config: ConfigOption = None,
    given: SetOption = None,
    form: OutputDefault = None,
) -> None:
    """Run a reference broker that speaks Kafka's protocol, until SIGTERM or SIGINT. Not for production data."""
    if context.invoked_subcommand is not None:
        output_before(context, form)
        return
    settings = settings_of(config, given)
    configure_logs(settings.log)
    log_uncaught()
    if port + brokers - 1 > PORT_MAX:
        raise Failure(f"{brokers} brokers from port {port} on: there is no port above {PORT_MAX}")
    import asyncio
    import random
    import time
    import uuid

    from broker.cluster.settings import BrokerSettings
    from broker.server.cluster import Chance, Cluster
    from broker.server.serving import serve

    # What was stopped for a while must not lose what it holds the moment it is back.
    broker_settings = BrokerSettings(topic_defaults={"retention.ms": "-1"}, offsets_retention_ms=FOR_EVER_MS)
    with ExitStack() as stack:
        directory = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tickover-broker-")))

        def make_cluster() -> Cluster:
            chance = Chance(lambda: str(uuid.uuid4()), random.randrange)
            return Cluster(directory, broker_settings, lambda: time.time() * 1000, chance)

        ports = [port and port + number for number in range(brokers)]
        try:
            asyncio.run(serve(make_cluster, ports, _tell))
        except OSError as error:
            raise Failure(f"{error.strerror or error}; other ports are taken by --port") from None
        say("stopped")


def _tell(bootstrap_servers: str) -> None:
    print(bootstrap_servers, flush=True)
    say(f"listening at {bootstrap_servers}; stop with Ctrl-C or SIGTERM")


@lab_app.command()
def acks(
    bootstrap_servers: Annotated[
        str | None, typer.Option(help="A Kafka (plain text, on this machine) to measure beside the reference broker.")
    ] = None,
    acks: Annotated[str, typer.Option(help="Comma list of 0, 1, -1.")] = "0,1,-1",
    replicas: Annotated[
        str | None, typer.Option(help="Comma list of 1 to 3. Default: 1,3, or 1 where there are no 3 brokers.")
    ] = None,
    linger: Annotated[str, typer.Option(help="Comma list of linger.ms.")] = "0,5",
    batch_size: Annotated[str, typer.Option(help="Comma list of batch.size: 16384 (bytes), 64KiB.")] = "16384",
    rate: Annotated[int, typer.Option(min=1, max=20_000, help="Records per second.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long each case is measured.")] = 2.0,
    record_size: Annotated[str, typer.Option(help="Size of each value: 200 (bytes), 2kB, 2KiB.")] = "200",
    plot: Annotated[Path | None, typer.Option(help="Write a plot to this file, as SVG.")] = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Measure produce and consume latency by acks, replicas, linger and batch size, and tell where the time goes."""
    from sidecar.lab.bare_connection import LabError
    from sidecar.lab.latency import Measured, cases, draw, explain, missing_library, rows, settings_text
    from sidecar.lab.measuring import Load, Place, measure, warm_up

    wanted_acks = _numbers("--acks", acks, -1, 1)
    wanted_replicas = None if replicas is None else _numbers("--replicas", replicas, 1, REPLICAS_MAX)
    lingers = _numbers("--linger", linger, 0, 900_000)
    batch_sizes = list(dict.fromkeys(_size("--batch-size", word, 1, NUMBER_MAX) for word in batch_size.split(",")))
    value_bytes = _size("--record-size", record_size, 0, RECORD_BYTES_MAX)
    if plot is not None and (missing := missing_library()) is not None:
        raise Failure(missing)
    load = Load(rate, seconds, value_bytes)
    measured: list[Measured] = []
    try:
        with _reference(wanted_replicas) as address:
            places = [Place(REFERENCE, address)]
            if bootstrap_servers is not None:
                places.append(Place(GIVEN, bootstrap_servers))
            # All that can be refused is refused before the first minute is spent.
            work = [
                (place, case)
                for place in places
                for case in cases(
                    wanted_acks, _replicas_of(place.name, place.broker_count(), wanted_replicas), lingers, batch_sizes
                )
            ]
            if len(work) > CASES_MAX:
                raise Failure(f"{len(work)} cases to measure, at most {CASES_MAX}: shorten a list", Status.USAGE)
            for place in places:
                warm_up(place, load)
            for place, case in work:
                say(f"{place.name}: {settings_text(case)}")
                measured.append(measure(place, case, load))
    except LabError as error:
        raise Failure(str(error)) from None
    found = rows(measured)
    show(found, form)
    for sentence in explain(found):
        say(sentence)
    if plot is not None:
        plot.write_text(draw(found), encoding="utf-8")
        say(f"wrote {plot}")


def _numbers(option: str, text: str, low: int, high: int) -> list[int]:
    try:
        numbers = list(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        raise Failure(f"{option} {text}: must be numbers with commas between", Status.USAGE) from None
    if not all(low <= number <= high for number in numbers):
        raise Failure(f"{option} {text}: each must be {low} to {high}", Status.USAGE)
    return numbers


def _size(option: str, text: str, low: int, high: int) -> int:
    try:
        return parse_size(text, low, high)
    except FormatError as error:
        raise Failure(f"{option}: {error}", Status.USAGE) from None


def _replicas_of(place: str, brokers: int, wanted: Sequence[int] | None) -> Sequence[int]:
    if wanted is None:
        return (1, REPLICAS_MAX) if brokers >= REPLICAS_MAX else (1,)
    if max(wanted) > brokers:
        raise Failure(f"{place}: {max(wanted)} replicas, but brokers: {brokers}", Status.USAGE)
    return wanted


@contextmanager
def _reference(replicas: Sequence[int] | None) -> Iterator[str]:
    """The address of a reference broker of our own, gone at the end."""
    from sidecar.embedded.java_kafka import KafkaUnavailable
    from sidecar.embedded.kafka import ReferenceKafka

    with tempfile.TemporaryDirectory(prefix="tickover-lab-") as directory:
        kafka = ReferenceKafka(Path(directory), brokers=max(replicas or (REPLICAS_MAX,)))
        try:
            kafka.start()
            yield kafka.bootstrap
        except KafkaUnavailable as error:
            raise Failure(str(error)) from None
        finally:
            kafka.kill()
