"""Writes docs/configuration.md from the model of the settings: `make pages`."""

from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, SecretStr

from sidecar.settings.live import liveness
from sidecar.settings.settings import Settings

BEFORE: Final = """\
<!-- Made from sidecar/settings/settings.py by `make pages`. -->
# Configuration

Flags win over environment variables, these over the YAML file (`--config FILE` or `TICKOVER_CONFIG`), that over the
defaults. In the file the dots are nesting: `wheel.records_max` is `wheel: {records_max: ...}`; see
[examples/tickover.yaml](../examples/tickover.yaml). On the command line any setting is `--set name=value`. An unknown
name is an error in all three. `tickover config show` prints what is in force, `tickover config schema` the JSON Schema,
`tickover config schema -o table` this table.

Durations are `250ms`, `90s`, `15m`, `2h`, `3d`, `1h30m` or `PT90S`, a bare number is milliseconds;
[sizes](contract.md#sizes) are `256KiB`, `512MiB` or `64MB`, a bare number is bytes; lists are separated by commas.

**While it runs.** `tickover run` looks at its files each second. In the column, *yes* says that a setting counts
without a restart when the YAML file changes it, where no flag and no variable is stronger. *content* says that what
the named file holds is read again, and so is a password from a `_FILE`, also the `sasl.password` of Kafka. For all
others a warning names what has changed and needs a restart. Policies and settings count when two looks find the same,
so that half a file is never used; a settings file without any setting is refused where it had some. What came by a
pipe isn't read again. SIGHUP has the next look compare contents, whatever size and times of the files
say. A file that can't be used changes nothing: the log says why, and `tickover_config_file_bad` or
`tickover_secret_file_bad` is 1 until it can.

"""

AFTER: Final = """
**Client settings.** `TICKOVER_KAFKA__CLIENT__SASL_MECHANISM=PLAIN` sets librdkafka's `sasl.mechanism`: what follows the
last `__` in lower case, `_` becomes `.`. They go to every Kafka client of the process, except those that a guarantee
rests on (`enable.idempotence`, `acks`, `enable.auto.commit`, `auto.offset.reset`, `isolation.level`, `partitioner`,
`message.timeout.ms` and the assignment strategy), which are fixed in `sidecar/kafka/client_settings.py`.

**Secrets.** `<variable>_FILE` reads the value from a file, for `redis.password`, `redis.sentinel_password`,
`redis.key_password`, `redis.url` and every client setting (`TICKOVER_KAFKA__CLIENT__SASL_PASSWORD_FILE`). A user name
and password in `redis.url` are taken out of it; only there `%` and two hexadecimal digits stand for a byte of UTF-8,
and `/`, `?` and `#` must be written so (`%2F`, `%3F`, `%23`). Secrets are masked wherever settings are shown.

**Not settings.** `TICKOVER_CONFIG` names the file. `TICKOVER_URL`, `TICKOVER_TOKEN`, `TICKOVER_TOKEN_FILE` and
`TICKOVER_CA_FILE` tell the commands that ask a sidecar (`policies`, `schedules`, `pauses`, `targets`, `messages`,
`changes`, `forecast`, `dead-letters`, `redrive`, `quarantine`, `whoami`, `audit`, `config running`, `overview`,
`replicas`, `capacity`, `top`, `events`) which one, with what token, and who signed its certificate.
"""


class Row(NamedTuple):
    """One setting as users see it."""

    setting: str
    variable: str
    default: str
    while_running: str
    meaning: str


def rows(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[Row]:
    """All settings in the order of the model."""
    defaults = model().model_dump(mode="json", by_alias=True)
    for name, field in model.model_fields.items():
        written = field.alias or name
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from rows(inner, f"{prefix}{written}.")
            continue
        setting = prefix + written
        variable = "TICKOVER_" + setting.upper().replace(".", "__")
        is_mapping = defaults[written] == {}
        if is_mapping:
            variable += "__<KEY>"
        secret = inner is SecretStr or SecretStr in get_args(inner)
        yield Row(
            setting,
            variable,
            "" if secret or is_mapping else shown(setting, defaults[written]),
            liveness(field),
            (field.description or "").replace("<", "\\<"),  # else taken for a tag
        )


def shown(setting: str, default: Any) -> str:
    """A default as a user would write it."""
    if isinstance(default, NoneType) or default in ("", []):
        return ""
    if isinstance(default, list):
        return ",".join(default)
    if setting == "data_dir":  # under whichever home
        return "~/" + Path(default).relative_to(Path.home()).as_posix()
    if "bytes" in setting:
        return f"{default >> 20}MiB" if default >> 20 else f"{default >> 10}KiB"
    return str(default).lower() if isinstance(default, bool) else str(default)


def page() -> str:
    """The whole text."""
    table = [
        "| setting | variable | default | while it runs | meaning |",
        "|---|---|---|---|---|",
        *(
            f"| `{row.setting}` | `{row.variable}` | {f'`{row.default}`' if row.default else ''} | "
            f"{row.while_running} | {row.meaning} |"
            for row in rows()
        ),
    ]
    return BEFORE + "\n".join(table) + "\n" + AFTER
