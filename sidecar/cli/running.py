"""`tickover run` and `tickover demo`. What they start is imported inside, so that others need not wait."""

import logging
import signal
from importlib import import_module
from types import FrameType
from typing import Annotated

import typer

from sidecar.cli.configuration import ConfigOption, SetOption, settings_of
from sidecar.cli.failure import Failure, Status
from sidecar.config import Settings
from sidecar.ending import abandon
from sidecar.logs import configure_logs

log = logging.getLogger(__name__)

KafkaOption = Annotated[str | None, typer.Option(help="host:port list of the brokers, `embedded` or `embedded-java`.")]
RedisOption = Annotated[str | None, typer.Option(help="redis[s][+cluster]://host:port, or `embedded`.")]


def run(
    config: ConfigOption = None,
    group: Annotated[str | None, typer.Option(help="Consumer group.")] = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    policies: Annotated[str | None, typer.Option(help="YAML file of policies.")] = None,
    given: SetOption = None,
) -> None:
    """Run the sidecar until SIGTERM or SIGINT. Settings: flags over TICKOVER_ variables over the file."""
    settings = settings_of(
        config, given, group=group, kafka__bootstrap_servers=kafka, redis__url=redis, policies__file=policies
    )
    _require_extras(settings)
    configure_logs(settings.log)
    signal.signal(signal.SIGTERM, _nothing_to_stop)
    from sidecar.process import Process

    raise typer.Exit(Process(settings).run())


def _nothing_to_stop(_number: int, _frame: FrameType | None) -> None:
    """Asked to stop while all that is needed is imported: as the first process of a container it would not hear it."""
    log.info("stopped before anything was started")
    abandon(Status.OK)


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, help="End by itself after so many seconds; else Ctrl-C ends it."),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, max=10_000, help="Delayed messages per second.")] = 20,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    given: SetOption = None,
) -> None:
    """Show delayed messages, retries and dead letters live; status 1 if any was lost, early or wrong."""
    settings = settings_of(config, given, kafka__bootstrap_servers=kafka, redis__url=redis)
    _require_extras(settings)
    from sidecar.demo import run_demo

    raise typer.Exit(run_demo(settings, seconds, rate))


def _require_extras(settings: Settings) -> None:
    """What the settings ask for is installed."""
    if settings.otel.enabled:
        try:
            import_module("sidecar.tracing")
        except ImportError as error:
            raise Failure(
                f"otel.enabled needs the extra `otel` ({error}): pip install 'tickover[otel]'", Status.USAGE
            ) from None
