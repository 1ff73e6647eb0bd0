"""`tickover broker`: the reference broker as a process of its own."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from sidecar.cli import lab
from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Failure, OutputDefault, output_before, say
from sidecar.service.logs import configure_logs

PORT_MAX = 65_535
FOR_EVER_MS = 1 << 62

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lab.app, name="lab")


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
    if port + brokers - 1 > PORT_MAX:
        raise Failure(f"{brokers} brokers from port {port} on: there is no port above {PORT_MAX}")
    import asyncio
    import random
    import time
    import uuid

    from broker.cluster.cluster import Chance, Cluster
    from broker.cluster.serving import serve
    from broker.cluster.settings import BrokerSettings

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
