"""Files of policies, and of whatever else has a name: YAML documents (`---`), one each. Errors name the line."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from policies.errors import PolicyFileError
from policies.faults.faults import faults_of
from policies.model import Policy

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
NODES_MAX: Final = 200_000  # counted with aliases expanded, so that a few lines cannot become gigabytes
DEPTH_MAX: Final = 40
ITEMS_MAX: Final = 10_000
_NUMBER: Final = re.compile(r"[-+]?(?:0|[1-9]\d*|\d*\.\d*(?:[eE][-+]?\d+)?|\.(?:inf|nan))", re.ASCII | re.IGNORECASE)
# What PyYAML lets through of `!!timestamp x`, `!!bool x` and `!!int ""`, of a date that is none and a number too long.
_QUOTED: Final = re.compile(r"(['\"])((?:\\.|(?!\1).)*)\1", re.DOTALL)
NOT_PLAIN: Final = (ValueError, AttributeError, LookupError, TypeError)


class Named(Protocol):
    """A model of pydantic's with a name."""

    @property
    def name(self) -> str: ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self: ...


Item = TypeVar("Item", bound=Named)


def read_policies_file(path: str | Path) -> tuple[Policy, ...]:
    """The policies of the file, in its order. Raises PolicyFileError, also for a file without any: a file that was
    emptied by mistake must not delete all that it managed.
    """
    policies = parse_policies(read_text(path), str(path))
    if not policies:
        raise PolicyFileError(str(path), 0, 0, "no policy in it; to manage none by file, leave policies.file unset")
    return policies


def parse_policies(text: str, path: str = "policies") -> tuple[Policy, ...]:
    """The policies of a YAML text; `path` is the name that errors show. Raises PolicyFileError."""
    return parse_items(text, path, Policy, "policy")


def read_text(path: str | Path) -> str:
    """A file's text. Raises PolicyFileError."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PolicyFileError(str(path), 0, 0, error.strerror or "cannot be read") from error
    if len(raw) > FILE_BYTES_MAX:
        raise PolicyFileError(str(path), 0, 0, f"larger than {FILE_BYTES_MAX} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PolicyFileError(str(path), line, 1, "not UTF-8") from None


def parse_items(text: str, path: str, model: type[Item], noun: str) -> tuple[Item, ...]:
    """Parse the items that the documents of a YAML text describe. Raises PolicyFileError, with the faults of all."""
    items: dict[str, Item] = {}
    faults: list[PolicyFileError] = []
    for document in _documents(text, path):
        try:
            item = _item_of(document, path, model, noun)
        except PolicyFileError as error:
            faults += error.each()
            continue
        if item.name in items:
            place = _place(_node_at(document, ("name",)))
            faults.append(PolicyFileError(path, *place, f"{noun} {item.name} stands twice in the file"))
        if len(items) >= ITEMS_MAX:
            raise PolicyFileError(path, *_place(document), f"more than {ITEMS_MAX} documents")
        items[item.name] = item
    if faults:
        raise _together(faults)
    return tuple(items.values())


def yaml_problem(error: yaml.MarkedYAMLError) -> str:
    """Describe a fault without what stands there: `password: *secret` is an alias, which PyYAML's own words quote."""

    def shown(quoted: re.Match[str]) -> str:
        return quoted[0] if len(quoted[2]) <= 2 or quoted[2].startswith("<") else "..."  # a sign, or a kind of token

    return _QUOTED.sub(shown, error.problem or error.context or "not YAML")


def odd_number(node: yaml.ScalarNode) -> str:
    """Describe the fault of a number that YAML 1.1 reads as another one than is meant; empty where there is none. The
    number isn't shown, as it may be a password.

    `1:30` would be 90, `010` 8, `0x10` 16, `1_000` 1000.
    """
    is_number = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and node.style is None
    if not is_number or _NUMBER.fullmatch(node.value):
        return ""
    return "no decimal number, and YAML would read another one than stands here: quote what is a text"


def _documents(text: str, path: str) -> Iterator[yaml.Node]:
    """The documents that hold something, as nodes, because only nodes know their lines."""
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            if isinstance(document, yaml.ScalarNode) and document.tag == "tag:yaml.org,2002:null":
                continue  # an empty document: a separator too many
            _check_nodes(document, path)
            yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise PolicyFileError(path, line, column, yaml_problem(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PolicyFileError(path, line, 1, f"a character that YAML does not allow ({error.reason})") from None
    except RecursionError:
        raise PolicyFileError(path, 0, 0, f"nested deeper than {DEPTH_MAX}") from None


def _check_nodes(document: yaml.Node, path: str) -> None:
    """Refuse what YAML lets through: keys given twice, aliases that blow up, numbers that are read as others."""
    pending = [(document, 1)]
    seen = 0
    while pending:
        node, depth = pending.pop()
        seen += 1
        if seen > NODES_MAX:
            raise PolicyFileError(path, *_place(document), f"more than {NODES_MAX} values in one document")
        if depth > DEPTH_MAX:
            raise PolicyFileError(path, *_place(node), f"nested deeper than {DEPTH_MAX}")
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise PolicyFileError(path, *_place(key), "a key must be a text")
                if key.value in keys:
                    raise PolicyFileError(path, *_place(key), f"the key {key.value} is given twice")
                keys.add(key.value)
                pending.append((value, depth + 1))
        elif isinstance(node, yaml.ScalarNode) and (problem := odd_number(node)):
            raise PolicyFileError(path, *_place(node), problem)
        elif isinstance(node, yaml.SequenceNode):
            pending.extend((item, depth + 1) for item in node.value)


def _item_of(document: yaml.Node, path: str, model: type[Item], noun: str) -> Item:
    try:
        # A fresh constructor without a reader: it only turns nodes into plain values.
        content = yaml.constructor.SafeConstructor().construct_document(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or document.start_mark
        raise PolicyFileError(path, mark.line + 1, mark.column + 1, yaml_problem(error)) from None
    except NOT_PLAIN:  # not their texts: they quote the value
        raise PolicyFileError(
            path, *_place(document), "not a plain value: a date that is none, a number too long"
        ) from None
    if not isinstance(content, dict):
        raise PolicyFileError(path, *_place(document), f"a {noun} is a mapping (name: ..., ...)")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = faults_of(error, cast(type[BaseModel], model), content)
        places = [_place(_node_at(document, fault.place)) for fault in faults]
        told = [PolicyFileError(path, *at, str(fault)) for at, fault in zip(places, faults, strict=True)]
        raise _together(told) from None


def _together(faults: Sequence[PolicyFileError]) -> PolicyFileError:
    first, *others = faults
    return PolicyFileError(first.path, first.line, first.column, first.problem, others)


def _node_at(document: yaml.Node, place: tuple[int | str, ...]) -> yaml.Node:
    """The deepest node on the way to the place: where a key is missing, the mapping that should have it."""
    node = document
    for part in place:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    # A key that should not be there is itself the place of the error.
                    node = value if isinstance(value, yaml.CollectionNode) else key
                    break
    return node


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
