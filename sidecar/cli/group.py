"""`tickover group rename`: a consumer group under another name, with all that it holds."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Final

import typer

from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Failure, Status, output_before, say
from sidecar.model.foreign_text import visible
from sidecar.operations.renaming.errors import NoSuchGroupError, RenameError, RenameRefusedError
from sidecar.operations.renaming.group_commits import GroupCommits
from sidecar.operations.renaming.group_topics import TopicAdmin
from sidecar.operations.renaming.redis_keys import GroupKeys
from sidecar.operations.renaming.renaming import Clients, Rename
from sidecar.operations.renaming.topic_copy import TopicCopier
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import OverflowUnavailable
from sidecar.settings.settings import Settings

PROGRESS_S: Final = 1.0

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Change a consumer group as a whole.")
app.callback()(output_before)


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
    if before.redis.embedded or before.kafka.embedded:
        words = (
            "embedded servers have no address of their own: give --set redis.url=... --set kafka.bootstrap_servers=..."
        )
        raise Failure(f"{words}, as `tickover run` says them at start", Status.USAGE)
    try:
        with closing(connect(before.redis.url, before.redis.client_options())) as redis:
            renaming = Rename(before, after, clients_of(after, redis, _seldom()), say)
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
        raise Failure(f"{error}; repeat the command, it goes on where it was") from None


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


def _seldom() -> Callable[[str, int, int], None]:
    told_s = time.monotonic()

    def progress(place: str, done: int, end: int) -> None:
        nonlocal told_s
        if time.monotonic() >= told_s + PROGRESS_S:
            told_s = time.monotonic()
            say(f"{place}: {done} of {end}")

    return progress
