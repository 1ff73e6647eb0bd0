"""The `tickover` command: its subcommands, and the one place where failures become a line and a status."""

import sys
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from pipeline import cli as pipeline
from pipeline.errors import PipelineError
from sidecar.cli import (
    broker,
    changes,
    config,
    dead_letters,
    doctor,
    group,
    messages,
    policies,
    run,
    schedules,
)
from sidecar.cli.output import Failure, OutputDefault, Status, output_before, say
from sidecar.model.version import VERSION
from sidecar.settings.settings import ConfigError

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
app.command()(run.run)
app.command()(run.demo)
app.add_typer(broker.app, name="broker")
app.command()(doctor.doctor)
app.command("size")(doctor.size_load)
app.add_typer(policies.app, name="policies")
app.add_typer(messages.app, name="messages")
app.command()(messages.forecast)
app.add_typer(changes.app, name="changes")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(dead_letters.redrive_app, name="redrive")
app.add_typer(schedules.app, name="schedules")
app.add_typer(group.overflow_app, name="overflow")
app.add_typer(group.app, name="group")
app.add_typer(config.app, name="config")
app.add_typer(config.tokens_app, name="tokens")
app.add_typer(doctor.acl_app, name="acl")
app.add_typer(pipeline.app, name="pipeline")


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
