"""`tickover overflow export`: what Redis holds, for the pipeline's `reconcile`."""

import json
import sys
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from sidecar.cli.config import ConfigOption, SetOption, settings_of
from sidecar.cli.output import Failure, Status, output_before, say
from sidecar.kafka.topic_reader import LogUnavailable
from sidecar.lookup.export import exported, ledger_ends
from sidecar.overflow.connection import connect
from sidecar.overflow.interface import OverflowLoss, OverflowUnavailable
from sidecar.overflow.signing import SigningKeyError, read_signing_keys
from sidecar.settings.settings import Settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into Redis without a sidecar.")
app.callback()(output_before)


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="File for the lines of JSON; - is stdout.")],
    config: ConfigOption = None,
    given: SetOption = None,
) -> None:
    """Write a line for every record that Redis holds, read from Redis itself. Changes nothing."""
    settings = settings_of(config, given)
    if settings.redis.embedded or settings.kafka.embedded:
        words = (
            "embedded servers have no address of their own: give --set redis.url=... --set kafka.bootstrap_servers=..."
        )
        raise Failure(f"{words}, as `tickover run` says them at start", Status.USAGE)
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
