"""`tickover group rename` and `tickover overflow export`: taking over or reading what a group keeps, by no sidecar."""

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Failure, ProgressLine, Status, output_before, say
from sidecar.kafka.topic_follower import LogUnavailable
from sidecar.lookup.export import exported, ledger_ends
from sidecar.model.foreign_text import visible
from sidecar.operations.renaming.errors import NoSuchGroupError, RenameError, RenameRefusedError
from sidecar.operations.renaming.group_commits import GroupCommits
from sidecar.operations.renaming.group_topics import TopicAdmin
from sidecar.operations.renaming.redis_keys import GroupKeys
from sidecar.operations.renaming.renaming import Clients, Rename
from sidecar.operations.renaming.topic_copy import TopicCopier
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import OverflowLoss, OverflowUnavailable
from sidecar.overflow.signing import SigningKeyError, read_signing_keys
from sidecar.settings.settings import Settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Change a consumer group as a whole.")
app.callback()(output_before)
overflow_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into Redis without a sidecar.")
overflow_app.callback()(output_before)


@app.command()
def rename(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The group's name. None of its processes may run.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name that it gets.")],
    plan: Annotated[bool, typer.Option("--plan", help="Only look, and print what would be done.")] = False,
    config: ConfigOption = None,
    given: SetOption = None,
) -> None:
    """Give a group another name (TICKOVER_GROUP): commits, ledger, topics and Redis keys are taken over, and nothing is
    lost or repeated. Stop its processes first. Killed, or after an error, repeat it: it goes on.
    """
    if old == new:
        raise Failure("OLD and NEW are the same name", Status.USAGE)
    before, after = (settings_of(config, given, group=group) for group in (old, new))
    _refuse_embedded(before)
    try:
        with closing(connect(before.redis.url, before.redis.client_options())) as redis, ProgressLine() as progress:
            renaming = Rename(before, after, clients_of(after, redis, partial(_tell_copied, progress)), say)
            if plan:
                for line in renaming.plan(renaming.look()):
                    print(visible(line))
            else:
                renaming.run()
    except NoSuchGroupError as error:
        raise Failure(str(error), Status.NOT_FOUND) from None
    except RenameRefusedError as error:
        raise Failure(str(error), Status.CONFLICT) from None
    except (RenameError, OverflowUnavailable) as error:
        raise Failure(f"{error}\nrepeat the command: it goes on where it was") from None


def clients_of(new: Settings, redis: object, progress: Callable[[str, int, int], None]) -> Clients:
    """Clients that a rename works with; `progress` is told how far a partition is copied."""
    kafka = {
        **new.kafka.client_properties(), "bootstrap.servers": new.kafka.bootstrap_servers,
        "allow.auto.create.topics": "false",  # else a broker makes what is only asked about
    }  # fmt: skip
    transactional_id = f"tickover.{new.group}.rename"
    return Clients(
        GroupCommits(kafka), TopicAdmin(kafka), GroupKeys(redis), lambda: TopicCopier(kafka, transactional_id, progress)
    )


def _tell_copied(progress: ProgressLine, place: str, done: int, end: int) -> None:
    progress.tell(f"{place}: {done} of {end}")


@overflow_app.command()
def export(
    out: Annotated[Path, typer.Option(help="File for the lines of JSON; - is stdout.")],
    config: ConfigOption = None,
    given: SetOption = None,
) -> None:
    """Write a line for every record that Redis holds, read from Redis itself. Changes nothing."""
    settings = settings_of(config, given)
    _refuse_embedded(settings)
    try:
        if str(out) == "-":
            records = _written(settings, sys.stdout)
        else:
            draft = out.with_name(f"{out.name}.part")
            with draft.open("w", encoding="utf-8") as file:
                records = _written(settings, file)
            draft.replace(out)
    except OSError as error:
        raise Failure(f"{out}: {error.strerror}", Status.USAGE) from None
    except OverflowLoss as error:
        raise Failure(f"Redis has lost something of what it holds, a sidecar will rebuild it: {error}") from None
    except (OverflowUnavailable, LogUnavailable) as error:
        raise Failure(f"{error}; `tickover doctor` finds the cause") from None
    say(f"{records} held records")


def _written(settings: Settings, file: TextIO) -> int:
    kafka = {**settings.kafka.client_properties(), "bootstrap.servers": settings.kafka.bootstrap_servers}
    redis, ledger = settings.redis, settings.ledger_topic
    try:
        signing = read_signing_keys(redis.signing_key_file)
    except SigningKeyError as error:
        raise Failure(str(error), Status.USAGE) from None
    with closing(connect(redis.url, redis.client_options())) as client:
        ends = partial(ledger_ends, kafka, ledger)
        return _lines(exported(client, settings.group, ledger, ends, signing), file)


def _lines(rows: Iterable[dict[str, Any]], file: TextIO) -> int:
    records = 0
    for row in rows:
        file.write(json.dumps(row) + "\n")
        records = row.get("export", {}).get("records", records)
    return records


def _refuse_embedded(settings: Settings) -> None:
    if settings.redis.embedded or settings.kafka.embedded:
        words = (
            "embedded servers have no address of their own: give --set redis.url=... --set kafka.bootstrap_servers=..."
        )
        raise Failure(f"{words}, as `tickover run` says them at start", Status.USAGE)
