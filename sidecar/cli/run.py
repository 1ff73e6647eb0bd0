"""The `tickover` command, the one place where failures become a line and a status, and what starts processes: `run` and
`demo`. What they start is imported inside, so that others need not wait.

No other command is imported here: a process that runs for long would keep in memory what only they need.
"""

import gc
import logging
import signal
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from pipeline.errors import PipelineError
from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Failure, OutputDefault, Status, output_before, say
from sidecar.kafka.background import abandon
from sidecar.model.version import VERSION
from sidecar.service.logs import configure_logs, log_uncaught
from sidecar.settings.settings import ConfigError, Settings
from sidecar.settings.settings_file import load_from

log = logging.getLogger(__name__)

HELP: Final = """Delayed delivery and retries for Kafka.

Data goes to stdout, words to stderr. Exit status: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict.
"""


class FailureGroup(TyperGroup):
    """The top of the command tree: an expected failure is told in words, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            say(f"tickover: {failure}")
            raise typer.Exit(failure.status) from None
        except PipelineError as error:
            say(f"tickover: {error}")
            raise typer.Exit(Status.FAILED) from None
        except ConfigError as error:
            for problem in error.problems:
                say(f"tickover: {problem}")
            raise typer.Exit(Status.USAGE) from None
        except BrokenPipeError:
            sys.stderr.close()  # the reader, `head` say, has seen enough
            raise typer.Exit(Status.OK) from None


app = typer.Typer(
    cls=FailureGroup,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tickover {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    form: OutputDefault = None,
) -> None:
    """Options that stand before the subcommand."""
    output_before(context, form)


KafkaOption = Annotated[str | None, typer.Option(help="host:port list of the brokers, `embedded` or `embedded-java`.")]
RedisOption = Annotated[str | None, typer.Option(help="redis[s][+cluster]://host:port, or `embedded`.")]


# tidy: the parameters of a command are its options
@app.command()
def run(
    config: ConfigOption = None,
    group: Annotated[str | None, typer.Option(help="Consumer group.")] = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    policies: Annotated[str | None, typer.Option(help="YAML file of policies.")] = None,
    processes: Annotated[int | None, typer.Option(help="Processes that share port and group, 1 to 64.")] = None,
    given: SetOption = None,
) -> None:
    """Run the sidecar until SIGTERM or SIGINT. Settings: flags over TICKOVER_ variables over the file.

    SIGHUP has it look at its files again: settings that may change, policies, tokens, certificate, passwords.
    """
    load = partial(
        settings_of, config, given,
        group=group, kafka__bootstrap_servers=kafka, redis__url=redis, policies__file=policies,
        processes=processes,
    )  # fmt: skip
    settings, source = load_from(config, load)
    _require_extras(settings)
    configure_logs(settings.log)
    log_uncaught()
    signal.signal(signal.SIGTERM, _nothing_to_stop)
    gc.disable()  # nothing that is imported is garbage: looking for it takes a sixth of the start
    if settings.processes > 1:
        from sidecar.supervisor.supervisor import supervise

        raise typer.Exit(supervise(settings, source))
    from sidecar.service.process import Process

    raise typer.Exit(Process(settings, source=source).run())


def _nothing_to_stop(_number: int, _frame: FrameType | None) -> None:
    """Asked to stop while all that is needed is imported: as the first process of a container it would not hear it."""
    log.info("stopped before anything was started")
    abandon(Status.OK)


# tidy: the parameters of a command are its options
@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, help="End by itself after so many seconds; else Ctrl-C ends it."),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, max=10_000, help="Delayed messages per second.")] = 20,
    report: Annotated[
        Path | None, typer.Option(help="At the end, pages of the pipeline's reports below this directory (by Spark).")
    ] = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    config: ConfigOption = None,
    given: SetOption = None,
) -> None:
    """Show delayed messages, retries and dead letters live; status 1 if any was lost, early or wrong."""
    settings = settings_of(config, given, kafka__bootstrap_servers=kafka, redis__url=redis)
    _require_extras(settings)
    if report is not None:
        _require_pipeline(settings)
    from sidecar.demo.demo import run_demo

    raise typer.Exit(run_demo(settings, seconds, rate, report))


def _require_pipeline(settings: Settings) -> None:
    """Spark is there, and its jobs may ask Kafka without what a command line should not show."""
    from pipeline.errors import PipelineUnavailable
    from pipeline.session import check_installed

    try:
        check_installed()
    except PipelineUnavailable as error:
        raise Failure(f"--report: {error}", Status.USAGE) from None
    if settings.kafka.client:
        raise Failure(
            "--report: kafka.client has settings, which would show in the jobs' command lines; run `tickover pipeline "
            "ingest`, `reconcile` and `report` beside the demo (docs/PIPELINE.md)",
            Status.USAGE,
        )


def _require_extras(settings: Settings) -> None:
    """Make sure that the extras which the settings need are installed. Raises Failure."""
    if settings.otel.enabled:
        try:
            import_module("sidecar.service.tracing")
        except ImportError as error:
            raise Failure(
                f"otel.enabled needs the extra `otel` ({error}): pip install 'WHEEL[otel]', with the wheel that "
                "`make wheel` makes in a checkout",
                Status.USAGE,
            ) from None
