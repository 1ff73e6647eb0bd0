"""`tickover config`: what is set, and what can be set. Needs nothing to run."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, show
from sidecar.settings.settings import Settings, load_settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show settings and what can be set.")
app.callback()(output_before)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="TICKOVER_CONFIG", help="YAML file of settings.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, e.g. --set wheel.records_max=100000; may be repeated."),
]


@app.command("show")
def show_settings(config: ConfigOption = None, given: SetOption = None, form: OutputOption = Form.YAML) -> None:
    """Show the settings in force, with secrets masked."""
    show(settings_of(config, given).model_dump(mode="json", by_alias=True), form)


@app.command()
def schema(form: OutputOption = Form.JSON) -> None:
    """Show every setting: as JSON Schema, or (-o table) with variable, default and meaning."""
    show(_listing(Settings) if form is Form.TABLE else Settings.model_json_schema(), form)


def settings_of(config: Path | None, given: list[str] | None, **flags: object) -> Settings:
    """Settings from the command line over environment and file; `flags` have `__` for dots, and None is not given."""
    said = {name.replace("__", "."): flag for name, flag in flags.items() if flag is not None}
    return load_settings(config, _assignments(given) | said, os.environ)


def _assignments(given: list[str] | None) -> dict[str, object]:
    assigned: dict[str, object] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Failure("--set: each must be name=value", Status.USAGE)  # which may be a password
        assigned[name] = value
    return assigned


def _listing(model: type[BaseModel], prefix: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    shown = model().model_dump(mode="json", by_alias=True)
    for name, field in model.model_fields.items():
        written = field.alias or name
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += _listing(inner, f"{prefix}{written}.")
            continue
        variable = "TICKOVER_" + (prefix + written).replace(".", "__").upper()
        rows.append(
            {
                "setting": prefix + written,
                "variable": variable + ("__<LIBRDKAFKA_KEY>" if written == "client" else ""),
                "default": shown[written],
                "meaning": field.description,
            }
        )
    return rows
