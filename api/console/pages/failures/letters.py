"""Dead letters: the list, one of them with where it went before, and sending it again corrected."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from api.console.page import Page, Refused, action, is_kept, screen
from api.console.pages.failures import redrives
from api.console.rest import Refusal, path_of
from api.console.words import pretty
from policies.headers import CONTROL_PREFIX, INSTRUCTIONS
from sidecar.operations.dead_letters.edit import NotEditable, difference
from sidecar.operations.dead_letters.masking import MASK

OF_PLAN: Final = ("topic", *redrives.FILTERS)  # what a redrive takes over
FILTERS: Final = (*OF_PLAN, "open")
FIELDS: Final = {"topic": "Topic", **redrives.FIELDS}
NEED_WRITE: Final = ("key_prefix", "header")
PARTS: Final = ("value", "key")  # of a letter, beside its headers
LIMIT: Final = 50
PLACE: Final = "/dead-letters/{topic}/{partition:int}/{offset:int}"


class Step(NamedTuple):
    """One step of a letter's way. `place`, `plan`: the letter and the redrive that it leads to."""

    text: str
    at: int | None = None
    kind: str = ""
    place: str | None = None
    plan: str | None = None


async def letters(page: Page) -> Response:
    """Letters that fit, in order of topic, partition and offset."""
    asked = page.asked(*FILTERS)
    told = await page.get("/v1/dead-letters", **asked, limit=LIMIT, cursor=page.query("cursor"))
    fields = {name: words for name, words in FIELDS.items() if page.may("write") or name not in NEED_WRITE}
    wanted = {name: value for name, value in asked.items() if name in OF_PLAN}
    return page.show("letters.html", told=told, asked=asked, limit=LIMIT, fields=fields, wanted=wanted)


async def letter(page: Page) -> Response:
    """One letter; with `payload` key, value and headers, which is recorded."""
    wants = page.query("payload") == "true" and page.may("write")
    told = await _letter(page, payload=wants)
    return page.show("letter.html", letter=told, story=_story(told), payload=told.get("payload"))


async def edit(page: Page) -> Response:
    """The form for a corrected copy."""
    told = await _letter(page, payload=True)
    shown = {**{name: _shown(told, name) for name in PARTS}, "headers": _lines(_headers(told["payload"]))}
    return _form(page, told, shown)


def _form(
    page: Page, told: Mapping[str, Any], fields: Mapping[str, str | None], problem: str = "", status: int = 200
) -> Response:
    is_object = isinstance(told["payload"]["value"], dict)
    return page.show("letter_edit.html", status, letter=told, fields=fields, is_object=is_object, problem=problem)


async def edited(page: Page) -> Response:
    """A plan that sends the corrected copy. What the form still shows masked is in no patch, and stays.

    A refusal is told above the form, which keeps what was written.
    """
    told = await _letter(page, payload=True)
    try:
        change = _change(told, page.form)
        if not change:
            raise Refused("Nothing was changed: to send it as it is, redrive it.")
        return await redrives.begin(page, {"topic": told["topic"], "letters": [told["position"]], "edit": change})
    except (Refusal, Refused) as refusal:
        written = {name: None if _shown(told, name) is None else page.form.get(name, "") for name in PARTS}
        fields = {**written, "headers": page.form.get("headers", "")}
        return _form(page, told, fields, refusal.detail, refusal.status)


async def act(page: Page) -> Response:
    """A plan to send or discard the letters that are checked."""
    chosen = page.listed("letter")
    topics = {position.rpartition("/")[0].rpartition("/")[0] for position in chosen}
    if len(topics) != 1:
        raise Refused("Select letters, all of one topic: a plan is of one.")
    body: dict[str, Any] = {"topic": topics.pop(), "letters": chosen}
    if page.form.get("action") == "discard":
        body["action"] = "discard"
    return await redrives.begin(page, body)


async def _letter(page: Page, payload: bool) -> dict[str, Any]:
    steps = {name: str(page.request.path_params[name]) for name in ("topic", "partition", "offset")}
    path = path_of("/v1/dead-letters/{topic}/{partition}/{offset}", **steps)
    told: dict[str, Any] = await page.get(path, payload="true" if payload else "")
    return told


def _story(told: Mapping[str, Any]) -> list[Step]:
    """The letter's way, as far as it is known, in the order in which it happened."""
    steps: list[Step] = []
    if told["first_failure"] is not None:
        steps.append(Step("Failed for the first time.", at=told["first_failure"]))
    if told["origin"]:
        steps.append(Step(f"Met first as {told['origin']}."))
    if told["redriven_from"]:
        edited = f", edited by {told['edited_by']}" if told["edited_by"] else ""
        steps.append(Step(f"Was a dead letter before, and was sent again{edited}:", place=told["redriven_from"]))
    attempt = f" after delivery {told['attempt']}" if told["attempt"] else ""
    why = told["reason"] or "by who wrote it"
    steps.append(Step(f"Given up{attempt}: {why}.", at=told["time"], kind="bad"))
    for name, words in (("redriven", "Sent again"), ("discarded", "Discarded")):
        if (fate := told[name]) is not None:
            steps.append(Step(f"{words} by the plan", at=fate["from"], plan=fate["plan"]))
            if fate.get("came_back"):
                steps.append(Step("Failed again, and came back as", kind="bad", place=fate["came_back"]))
    return steps


def _change(told: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
    """The edit that makes of what was shown what came back. Raises Refused."""
    payload, change = told["payload"], dict[str, Any]()
    for name in PARTS:
        shown, given = _shown(told, name), form.get(name, "")
        if shown is None or given == shown:
            continue
        if name == "value" and isinstance(payload["value"], dict):
            change |= _patch(payload["value"], given)
        else:
            change[name] = given
    before, after = _headers(payload), _parsed(form.get("headers", ""))
    headers: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    headers |= dict.fromkeys(before.keys() - after.keys())
    return {**change, **({"headers": headers} if headers else {})}


def _patch(shown: Any, given: str) -> dict[str, Any]:
    try:
        patch = difference(shown, json.loads(given))
    except (NotEditable, ValueError, RecursionError) as error:
        raise Refused(f"The value can't be patched: {error}.") from None
    return {"merge": patch} if patch else {}


def _headers(payload: Mapping[str, Any]) -> dict[str, str]:
    """Headers that a form can show and change: text that comes back from it as it was, each once, the user's or
    instructions to tickover.
    """
    names = [name for name, _ in payload["headers"]]
    return {
        name: value
        for name, value in payload["headers"]
        if isinstance(value, str) and value != MASK and names.count(name) == 1 and _comes_back(name, value)
        if not name.startswith(CONTROL_PREFIX) or name in INSTRUCTIONS
    }


def _lines(headers: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in headers.items())


def _comes_back(name: str, value: str) -> bool:
    """Whether a header's line is read as this header, and survives a form."""
    try:
        return is_kept(name + value) and _parsed(_lines({name: value})) == {name: value}
    except Refused:
        return False


def _parsed(text: str) -> dict[str, str]:
    """Headers of `name: value` lines. Raises Refused."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip() or name.strip() in found:
            raise Refused(f"A header is a line `name: value`, each name once; {line[:100]!r} is none.")
        found[name.strip()] = value.removeprefix(" ")
    return found


def _shown(told: Mapping[str, Any], name: str) -> str | None:
    """Key or value as a form shows it; None: it is no text, or none that would come back as it was."""
    part = told["payload"][name]
    if part == {"bytes": told[f"{name}_bytes"]}:
        return None
    text = part or "" if isinstance(part, str | None) else pretty(part)
    return text if is_kept(text) else None


SCREENS: Final = (
    screen("/dead-letters", letters),
    action("/dead-letters", act),
    screen(PLACE, letter),
    screen(f"{PLACE}/edit", edit, role="write"),
    action(f"{PLACE}/edit", edited),
)
