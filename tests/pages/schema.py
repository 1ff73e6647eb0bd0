"""JSON Schema in words: one cell for what a value may be, one table for an object."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from policies.duration import format_duration
from policies.fields import Duration
from tests.pages.text import code, table

DURATION = TypeAdapter(Duration).json_schema()["anyOf"]
Schema = Mapping[str, Any]
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "maxProperties": "at most {} of them",
    "pattern": "pattern `{}`",
}


def title(reference: str) -> str:
    """The name of a schema that is referred to, as a reader would say it."""
    return reference.rpartition("/")[2].rpartition("__")[2]


def anchor(reference: str) -> str:
    """The name by which its section is linked to."""
    return title(reference).lower()


def kind(schema: Schema) -> str:
    """Type of a value in words, with links to other schemas."""
    if reference := schema.get("$ref"):
        return f"[{title(reference)}](#{anchor(reference)})"
    choices = list(schema.get("anyOf") or schema.get("oneOf") or ())
    if choices[: len(DURATION)] == DURATION:
        return " or ".join(["duration", *(kind(choice) for choice in choices[len(DURATION) :])])
    if choices:
        return " or ".join(dict.fromkeys(kind(choice) for choice in choices))
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(kind(item) for item in schema['prefixItems'])}]"
        case "array":
            return f"list of {kind(schema['items'])}" if schema.get("items") else "list"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {kind(schema['additionalProperties'])}"
        case None:
            return "any"
        case name:
            return str(name)


def limits(schema: Schema) -> str:
    """Limits of the values in words; empty without any."""
    branches = [schema, *(branch for branch in schema.get("anyOf", ()) if branch not in DURATION)]
    return ", ".join(
        words.format(branch[name]) for branch in branches for name, words in LIMITS.items() if name in branch
    )


def default(schema: Schema, is_required: bool) -> str:
    """Default in words: `required` where a value must be given, empty where there is none to show."""
    if is_required:
        return "required"
    value = schema.get("default")
    if value is None or value == [] or isinstance(value, dict):
        return ""
    if isinstance(value, list):
        return ", ".join(map(code, value))
    is_duration = schema.get("anyOf", [])[: len(DURATION)] == DURATION
    return code(format_duration(value) if is_duration else str(value).lower() if isinstance(value, bool) else value)


def properties(schema: Schema) -> str:
    """A table of an object's fields."""
    required = schema.get("required", ())
    return table(
        ("field", "value", "default", "limits", "what"),
        (
            (code(name), kind(field), default(field, name in required), limits(field), field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ),
    )


def sections(schemas: Mapping[str, Schema], level: str = "##") -> Iterator[str]:
    """One section for each object."""
    for name, schema in schemas.items():
        yield f"\n{level} {title(name)}\n\n{schema.get('description', '').strip()}\n\n"
        if schema.get("properties"):
            yield properties(schema)
