"""Policies and schedules as they are edited: YAML from a form, read as the command line reads a file."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from api.console.page import Page
from api.console.rest import Answer, path_of
from policies.errors import PolicyFileError
from policies.file import parse_items
from policies.model import Policy, policy_document
from sidecar.operations.schedules.schedule import Schedule, schedule_document


class Rule(NamedTuple):
    """One kind of them: in words, as a path of REST and of pages, as a model, and as a document of REST."""

    noun: str
    path: str
    model: type[BaseModel]
    document: Callable[[Any], dict[str, Any]]


POLICY = Rule("policy", "/policies", Policy, policy_document)
SCHEDULE = Rule("schedule", "/schedules", Schedule, schedule_document)


class Written(NamedTuple):
    """Text of an editor, as a document; `fault` says why it is none of its kind, with line and column."""

    document: dict[str, Any]
    fault: str = ""


def written(rule: Rule, text: str) -> Written:
    """The one item of a text."""
    try:
        items = parse_items(text, rule.noun, rule.model, rule.noun)  # type: ignore[type-var]
    except PolicyFileError as error:
        return Written({}, str(error))
    if len(items) != 1:
        return Written({}, f"There must be one {rule.noun}, and there are {len(items)}.")
    return Written(rule.document(items[0]))


async def save(page: Page, rule: Rule, document: Mapping[str, Any]) -> Answer:
    """Create it, or replace the version that the form was made of. Raises `Refusal`."""
    etag = page.form.get("etag", "")
    condition = {"If-Match": etag} if etag else {"If-None-Match": "*"}
    return await page.rest.call("PUT", at(rule, str(document["name"])), None, dict(document), condition)


async def delete(page: Page, rule: Rule, name: str) -> Answer:
    """Delete the version that was seen. Raises `Refusal`."""
    return await page.rest.call("DELETE", at(rule, name), None, None, {"If-Match": page.form.get("etag", "")})


def at(rule: Rule, name: str) -> str:
    """Where REST has the one of this name."""
    return path_of(f"/v1{rule.path}/{{name}}", name=name)
