"""Where settings come from: flags over environment over YAML file, each value remembered with its source.

This is not `pydantic-settings`, because three things are wanted that it does not give: an unknown variable
or key is refused (with the nearest known one), an error names the variable or key that holds the bad value,
and librdkafka's settings pass through as a mapping whose keys are dotted.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import yaml
from pydantic import BaseModel, SecretStr, ValidationError

from policies.faults.places import written_at
from policies.faults.words import words_of
from policies.file import NOT_PLAIN, odd_number, yaml_problem
from sidecar.settings.watched_file import FileSecret

PREFIX: Final = "TICKOVER_"
# Ours, but no settings: the file's name, what the command line needs to call us, the container's image.
OTHER_VARIABLES: Final = frozenset(
    {"TICKOVER_CONFIG", "TICKOVER_URL", "TICKOVER_TOKEN", "TICKOVER_TOKEN_FILE", "TICKOVER_CA_FILE", "TICKOVER_IMAGE"}
)
RESERVED_PREFIXES: Final = ("TICKOVER_TEST_", "TICKOVER_BENCH_")
# Kubernetes sets these for every service whose name begins with "tickover"; they are nobody's settings.
KUBERNETES_SERVICE: Final = re.compile(r"TICKOVER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
KUBERNETES_PORT: Final = re.compile(r"(tcp|udp|sctp)://.*")
# librdkafka's own settings that end in ".file": for them `_FILE` does not mean "read the secret from here".
CLIENT_FILE_KEYS: Final = frozenset(
    {"sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.assertion.jwt.template.file"}
)
CLIENT: Final = ("kafka", "client")
REDIS_URL: Final = ("redis", "url")  # may hold a password, which the settings take out of it
# Passwords whose file is read again when it changes.
CHANGING_SECRETS: Final = frozenset(
    {("redis", "password"), ("redis", "sentinel_password"), ("kafka", "client", "sasl.password")}
)
FILE_BYTES_MAX: Final = 1 << 20
CREDENTIALS: Final = re.compile(r"://.*@", re.DOTALL)  # a URL with a password in it, where none belongs

Place = tuple[str, ...]


class ConfigError(Exception):
    """Settings that cannot be used. `problems` has a line for each: the source, and what to do.

    `is_unread`: a file of them couldn't be read, and may be readable later without a change of the settings.
    """

    def __init__(self, problems: tuple[str, ...], is_unread: bool = False) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.is_unread = is_unread


class Sourced(NamedTuple):
    """A value and the words by which the user knows where it came from."""

    value: object
    source: str


class Gathered(NamedTuple):
    """Settings of one or several sources: leaf path -> value, everything found wrong on the way, and files of secrets
    that couldn't be read.
    """

    leaves: dict[Place, Sourced]
    problems: list[str]
    unread: list[Path]


def gather(
    model: type[BaseModel], file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str]
) -> Gathered:
    """Merge the three sources, the strongest last. Flags have dotted names; None means not given."""
    gathered = Gathered({}, [], [])
    if file is not None:
        document = _read_document(file)
        _walk(model, document, (), f"{file}: ", gathered)
    _take_environment(model, environ, gathered)
    for name, value in flags.items():
        if value is not None:
            _place(model, _client_path(tuple(name.split("."))), Sourced(value, f"option {name}"), gathered)
    return gathered


def nest(leaves: Mapping[Place, Sourced]) -> dict[str, Any]:
    """The leaves as the nested mapping that a model validates."""
    tree: dict[str, Any] = {}
    for path, sourced in leaves.items():
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = sourced.value
    return tree


def explain(
    model: type[BaseModel], error: ValidationError, leaves: Mapping[Place, Sourced], told: Sequence[str] = ()
) -> tuple[str, ...]:
    """A line for each setting that can't be used: the source, what is wrong, and what the setting means. Not of a
    source of which one of the lines `told` says it already.
    """
    found: dict[str, str] = {}
    for item in error.errors(include_url=False):
        path = tuple(str(part) for part in item["loc"])
        place = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in leaves), None)
        sourced = None if place is None else leaves[place]
        inside = [leaf.source for place, leaf in leaves.items() if path and place[: len(path)] == path]
        where = sourced.source if sourced else ", ".join(inside) or ".".join(path) or "settings"
        if any(line.startswith(f"{where}: ") for line in told):
            continue
        message = words_of(item, written_at(model, path))
        is_shown = sourced and not _is_secret(model, path) and not CREDENTIALS.search(str(sourced.value))
        shown = f", got {str(sourced.value)[:80]!r}" if sourced and is_shown else ""
        meaning = _description(model, path)
        found.setdefault(where, f"{where}: {message}{shown}" + (f"  ({meaning})" if meaning else ""))
    return tuple(found.values())


def _read_document(file: Path) -> object:
    try:
        with file.open("rb") as stream:
            text = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        what = f"{file}: cannot be read: {error.strerror}; check --config or TICKOVER_CONFIG"
        raise ConfigError((what,), is_unread=True) from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError((f"{file}: larger than 1 MiB; this is not a configuration file",))
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:  # not its own text: that shows the line, which may hold a secret
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError((f"{file}{place}: not valid YAML: {yaml_problem(error)}",)) from None
    except (yaml.YAMLError, *NOT_PLAIN, RecursionError):
        raise ConfigError((f"{file}: not valid YAML",)) from None


class _Loader(yaml.SafeLoader):
    """The safe loader, which takes the last of two equal keys in silence, and 1:30 for 90; here both are errors."""

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if problem := odd_number(node):
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _walk(model: type[BaseModel], value: object, path: Place, label: str, into: Gathered) -> None:
    """Take the leaves of a document, section by section."""
    if value is None and not path:
        return
    section = _section(model, path)
    if section is None and path != CLIENT:
        _place(model, path, Sourced(value, label + ".".join(path)), into)
    elif value is None:
        return  # a section whose lines are all commented out
    elif not isinstance(value, dict):
        into.problems.append(f"{label}{'.'.join(path) or 'the file'}: must be a mapping of settings")
    elif path == CLIENT:
        for key, item in value.items():
            _place(model, (*CLIENT, str(key)), Sourced(item, f"{label}kafka.client.{key}"), into)
    else:
        for key, item in value.items():
            _walk(model, item, (*path, str(key)), label, into)


def _take_environment(model: type[BaseModel], environ: Mapping[str, str], into: Gathered) -> None:
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or _is_foreign(name, value):
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        _place(model, _client_path(path), Sourced(value, f"environment variable {name}"), into)


def _is_foreign(name: str, value: str) -> bool:
    return (
        name in OTHER_VARIABLES
        or name.startswith(RESERVED_PREFIXES)
        or KUBERNETES_SERVICE.fullmatch(name) is not None
        or (name.endswith("_PORT") and KUBERNETES_PORT.fullmatch(value) is not None)
    )


def _client_path(path: Place) -> Place:
    """Join what follows `kafka.client` to one dotted librdkafka key, be it from a flag or a variable."""
    if path[:2] != CLIENT or path == CLIENT:
        return path
    key = ".".join(path[2:]).replace("_", ".")
    if key.endswith(".file") and key not in CLIENT_FILE_KEYS:
        key = key.removesuffix(".file") + "_file"
    return (*CLIENT, key)


def _place(model: type[BaseModel], path: Place, sourced: Sourced, into: Gathered) -> None:
    """Record one leaf, replacing a weaker source's; a name that is not a setting is a problem."""
    path, sourced = _open_secret(model, path, sourced, into)
    if path[:2] == CLIENT and path != CLIENT:
        into.leaves[path] = sourced
        return
    if path in _leaf_paths(model):
        into.leaves[path] = sourced
        return
    if _section(model, path) is not None or path == CLIENT:
        into.problems.append(f"{sourced.source}: is a section, not a setting; set one of {_members(model, path)}")
        return
    into.problems.append(f"{sourced.source}: unknown setting{_suggestion(model, path, sourced.source)}")


def _open_secret(model: type[BaseModel], path: Place, sourced: Sourced, into: Gathered) -> tuple[Place, Sourced]:
    """`password_file` stands for `password` with the file's content, less one line end."""
    base = (*path[:-1], path[-1].removesuffix("_file"))
    if base == path or not (_is_secret(model, base) or base[:2] == CLIENT or base == REDIS_URL):
        return path, sourced
    file = Path(str(sourced.value))
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            text = stream.read(FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        into.problems.append(f"{sourced.source}: cannot read the secret from {sourced.value}: {reason}")
        into.unread.append(file)
        return base, Sourced("", sourced.source)
    secret = text.removesuffix("\n").removesuffix("\r")
    may_change = base in CHANGING_SECRETS and secret
    return base, Sourced(FileSecret(secret, file) if may_change else secret, sourced.source)


def _suggestion(model: type[BaseModel], path: Place, source: str) -> str:
    known = {".".join(leaf): leaf for leaf in _leaf_paths(model)}
    near = get_close_matches(".".join(path), known, n=1, cutoff=0.5)
    if not near:
        return "; `tickover config schema` lists all settings"
    if source.startswith("environment"):
        return f"; did you mean {PREFIX}{'__'.join(known[near[0]]).upper()}?"
    return f"; did you mean {near[0]}?"


def _members(model: type[BaseModel], path: Place) -> str:
    inside = [".".join(leaf) for leaf in _leaf_paths(model) if leaf[: len(path)] == path]
    return ", ".join(inside) or ".".join((*path, "<librdkafka key>"))


def _leaf_paths(model: type[BaseModel], path: Place = ()) -> list[Place]:
    paths = []
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            paths += _leaf_paths(inner, here)
        elif here != CLIENT:
            paths.append(here)
    return paths


def _field(model: type[BaseModel], path: Place) -> Any:
    """The pydantic field at a path, or None."""
    section: Any = model
    field = None
    for part in path:
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return None
        field = next((f for name, f in section.model_fields.items() if part == (f.alias or name)), None)
        if field is None:
            return None
        section = field.annotation
    return field


def _section(model: type[BaseModel], path: Place) -> type[BaseModel] | None:
    if not path:
        return model
    field = _field(model, path)
    inner = None if field is None else field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _is_secret(model: type[BaseModel], path: Place) -> bool:
    if path[:2] == CLIENT:
        return True
    field = _field(model, path)
    return field is not None and (field.annotation is SecretStr or SecretStr in get_args(field.annotation))


def _description(model: type[BaseModel], path: Place) -> str:
    field = _field(model, path)
    return "" if field is None else field.description or ""
