"""`tickover config` and `tickover tokens`: what is set, what can be set, and whose tokens the API takes.

Neither asks a sidecar. Settings are only shown; of tokens the file is changed, which a sidecar reads again.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel

from api.access.auth import AccessConfigError, Role, new_token, parse_tokens
from api.access.tokens_file import NewEntry, TokenExists, UnknownToken, rewrite, with_token, without_token
from sidecar.cli.output import Failure, Form, OutputOption, Status, output_before, say, show
from sidecar.model.times import rfc_3339
from sidecar.settings.live import liveness
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

tokens_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Give tokens of the API, and take them back.\n\nThe file is replaced by another of its name. A container to "
    "which the file is mounted by itself doesn't see that, and goes on with the tokens of before: mount the file's "
    "directory.",
)
tokens_app.callback()(output_before)
FileOption = Annotated[Path | None, typer.Option("--file", "-f", help="The tokens file. Default: api.tokens_file.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the caller, as the audit topic has it.")]
RoleOption = Annotated[Literal["read", "write", "admin"], typer.Option("--role", help="What it may do.")]
ExpiresOption = Annotated[
    str, typer.Option("--expires", help="From then on it is nobody's: 2027-01-31T00:00:00Z. Default: never.")
]


@app.command("show")
def show_settings(config: ConfigOption = None, given: SetOption = None, form: OutputOption = Form.YAML) -> None:
    """Show the settings in force, with secrets masked."""
    show(settings_of(config, given).model_dump(mode="json", by_alias=True), form)


@app.command()
def schema(form: OutputOption = Form.JSON) -> None:
    """Show every setting: as JSON Schema, or (-o table) with variable, default and meaning."""
    show(_listing(Settings) if form is Form.TABLE else Settings.model_json_schema(), form)


@tokens_app.command("new")
def new(
    name: NameArgument,
    role: RoleOption,
    expires: ExpiresOption = "",
    file: FileOption = None,
    config: ConfigOption = None,
    given: SetOption = None,
    form: OutputOption = Form.TABLE,
) -> None:
    """Make a token and show it, this once: the file keeps its hash. A sidecar that runs takes it within a second."""
    path = _tokens_path(file, config, given)
    token, digest = new_token()
    entry = NewEntry(name, Role[role.upper()], digest, expires)
    _change(path, lambda text: with_token(text, entry, f"tokens file {path}"))
    if form is Form.TABLE:
        print(token)
    else:
        show({"name": name, "role": role, "expires": expires or None, "token": token}, form)
    say(f"{path} has the token's hash. The token itself is shown this once.")


@tokens_app.command("list")
def list_tokens(
    file: FileOption = None, config: ConfigOption = None, given: SetOption = None, form: OutputOption = Form.TABLE
) -> None:
    """List whose tokens there are, with which role and until when; never a hash."""
    path = _tokens_path(file, config, given)
    try:
        tokens = parse_tokens(path.read_text("utf-8"), f"tokens file {path}")
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None
    rows = [
        {
            "name": token.caller.name,
            "role": "" if token.caller.role is None else token.caller.role.name.lower(),
            "expires": None if token.expires_s == math.inf else rfc_3339(round(token.expires_s * 1_000)),
        }
        for token in tokens
    ]
    show(rows, form)


@tokens_app.command("revoke")
def revoke(name: NameArgument, file: FileOption = None, config: ConfigOption = None, given: SetOption = None) -> None:
    """Take a token out of the file. A sidecar that runs refuses it within a second."""
    path = _tokens_path(file, config, given)
    _change(path, lambda text: without_token(text, name, f"tokens file {path}"))
    say(f"the token of {name} is no more in {path}")


def _tokens_path(file: Path | None, config: Path | None, given: list[str] | None) -> Path:
    path = file or Path(settings_of(config, given).api.tokens_file)
    if path == Path():
        raise Failure("which file? Say --file FILE, or set api.tokens_file (TICKOVER_API__TOKENS_FILE)", Status.USAGE)
    return path


def _change(path: Path, change: Callable[[str], str]) -> None:
    try:
        rewrite(path, change)
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError | ValueError) -> Failure:
    match error:
        case UnknownToken():
            return Failure(str(error), Status.NOT_FOUND)
        case TokenExists():
            return Failure(str(error), Status.CONFLICT)
        case AccessConfigError():
            return Failure(str(error))
        case OSError():
            return Failure(f"{path}: {error.strerror or type(error).__name__}")
        case _:
            return Failure(f"{path} is not UTF-8 text")


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
                "while_running": liveness(field) or None,
                "meaning": field.description,
            }
        )
    return rows
