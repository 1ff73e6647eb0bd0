"""Sending: one message by a form, perhaps like one that is there, and many as CSV or JSON lines, tried out first."""

import json
import secrets
from collections.abc import Mapping
from io import StringIO
from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, Refused, action, is_kept, screen, whole
from api.console.rest import Refusal, path_of
from sidecar.model.message_file import Line, MessageFileError, batches, messages_in

FIELDS: Final = (
    "target", "source", "key", "value", "delay", "deliver_at", "spread", "expires_at", "target_partition", "id",
)  # fmt: skip
CONTENT: Final = ("key", "value")
FILLED: Final = ("target", "source")  # by the address
KEY_BYTES: Final = 16
MANY_MAX: Final = 5_000  # of one form
SHOWN_MAX: Final = 200
MASK: Final = "***"
MASKED: Final = "masked"  # a field of a form that was filled with masked content
REUSED: Final = "idempotency-key-reused"  # the form was sent before, and changed since: by the browser's way back


async def form(page: Page) -> Response:
    """The form, empty or filled with a message that is there."""
    values, warning = dict(page.asked(*FILLED)), ""
    if id := page.query("duplicate") or page.query("replace"):
        values, warning = await _like(page, id, keep_id=bool(page.query("replace")))
    return _show(page, values, warning=warning)


async def _like(page: Page, id: str, keep_id: bool) -> tuple[dict[str, str], str]:
    """Fields of a message like this one, and what can't be told of it."""
    places = page.asked("source", "partition")
    told = await page.get(path_of("/v1/messages/{id}", id=id), **places, payload="true")
    values = {"target": told["target"], "source": told["source"], **({"id": id} if keep_id else {})}
    if keep_id:
        values["deliver_at"] = told["due_utc"] or str(told["due"])
    payload = told["payload"]
    if payload is None:
        return values, "Its topic has the record no more: key, value and headers have to be written anew."
    own = [(name, content) for name, content in payload["headers"] if not name.startswith("tickover-")]
    lines = {f"{name}={_plain(content)}": _is_line(name, content) for name, content in own}
    values |= {name: _plain(payload[name]) for name in CONTENT if _is_text(payload[name])}
    values["headers"] = "\n".join(line for line, is_kept in lines.items() if is_kept)
    is_whole = all(lines.values()) and all(_is_text(payload[name]) for name in CONTENT)
    warnings = []
    if is_masked := any(MASK in values.get(name, "") for name in (*CONTENT, "headers")):
        values[MASKED] = "yes"
    if is_masked or not is_whole:
        warnings.append("Some of it is masked, or is no text that a form can keep: it has to be written anew.")
    if isinstance(payload["key"], dict | list):
        warnings.append("The key is JSON: its spaces may have been others, and to Kafka that is another key.")
    return values, " ".join(warnings)


def _is_text(content: Any) -> bool:
    """Whether a field can have it: not bytes that aren't shown, nor what a form would change."""
    is_closed = isinstance(content, dict) and set(content) == {"bytes"}
    return not is_closed and is_kept(_plain(content))


def _is_line(name: str, content: Any) -> bool:
    """Whether a header can be a line of the form, and is read as this header."""
    text = f"{name}={_plain(content)}"
    return _is_text(content) and bool(name) and "=" not in name and "\n" not in text and is_kept(text)


def _plain(content: Any) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content)


def _show(page: Page, values: Mapping[str, str], status: int = 200, **told: Any) -> Response:
    given = {name: values.get(name, "") for name in (*FIELDS, "headers")}
    more = {"problem": "", "warning": "", "accepted": None, **told}
    key = values.get("idempotency_key") or secrets.token_hex(KEY_BYTES)
    shown = {name: given[name] for name in FIELDS if given[name]}
    header = [line for line in given["headers"].split("\n") if line]
    return page.show(
        "send.html",
        status,
        values=given,
        idempotency_key=key,
        masked=values.get(MASKED, ""),
        command=page.tickover("messages send", {**shown, "header": header}),
        call=page.curl("POST", "/v1/messages", None, _body(values, strict=False)),
        **more,
    )


def _body(values: Mapping[str, str], strict: bool = True) -> dict[str, Any]:
    """The message of a form; empty fields are left out. Raises `Refused`."""
    body: dict[str, Any] = {name: text for name in FIELDS if (text := values.get(name, "")) != ""}
    body = {name: text if name in CONTENT else text.strip() for name, text in body.items()}
    if "target_partition" in body:
        body["target_partition"] = whole(body["target_partition"])
    headers = [line.partition("=") for line in values.get("headers", "").split("\n") if line.strip()]
    if strict and values.get(MASKED) and any(MASK in values.get(name, "") for name in (*CONTENT, "headers")):
        raise Refused(f"Some of it is masked ({MASK}), and would be sent so: write it anew, or take it out.")
    if strict and (bad := [name for name, equals, _ in headers if not equals or not name]):
        raise Refused(f"A header must be name=value: {bad[0][:100]}")
    if headers:
        body["headers"] = [[name, value] for name, _, value in headers]
    return body


async def send(page: Page) -> Response:
    """Send the message of the form; sent again, it is sent once."""
    values = page.form
    try:
        headers = {"Idempotency-Key": values.get("idempotency_key", "")}
        answer = await page.rest.call("POST", "/v1/messages", None, _body(values), headers)
    except Refused as refused:
        return _show(page, values, 422, problem=str(refused))
    except Refusal as refusal:
        if refusal.is_of(REUSED):
            again = {**values, "idempotency_key": ""}
            return _show(page, again, refusal.status, problem=f"{refusal.detail} Send it now if another one is meant.")
        return _show(page, values, refusal.status, problem=refusal.detail)
    return _show(page, {}, accepted=answer.document)


# --- many ---------------------------------------------------------------------------------------------------------


async def many(page: Page) -> Response:
    """The form for CSV or JSON lines."""
    return page.show(
        "send_many.html", text="", problem="", answers=[], counts=None, key="", sent=False, left=0, **_many_shown()
    )


async def try_many(page: Page) -> Response:
    """Say what would become of each. Nothing is sent."""
    return await _many(page, dry_run=True)


async def send_many(page: Page) -> Response:
    """Send them: the count that was typed must be theirs."""
    return await _many(page, dry_run=False)


async def _many(page: Page, dry_run: bool) -> Response:
    """Try or send batch by batch. Where one can't be sent, the page offers all of them again under the same keys: what
    was sent already is not sent twice.
    """
    text, key = page.form.get("text", ""), page.form.get("idempotency_key") or secrets.token_hex(KEY_BYTES)
    answers: list[Mapping[str, Any]] = []
    lines: list[Line] = []
    left = 0
    try:
        lines += list(messages_in(StringIO(text)))  # only a line feed ends a line: JSON may have others within a text
        if len(lines) > MANY_MAX:
            raise MessageFileError(f"{len(lines)} messages; a form takes {MANY_MAX}, a file as many as it has")
        if not dry_run and page.form.get("count", "").replace(",", "") != str(len(lines)):
            raise MessageFileError(f"the count that was typed is not {len(lines)}, so nothing was sent")
        for number, batch in enumerate(batches(lines)):
            answers += await _sent(page, batch, dry_run, f"{key}-{number}")
        problem = ""
    except MessageFileError as error:
        problem = f"{error}."
    except Refusal as refusal:
        problem, left = refusal.detail, 0 if dry_run else len(lines)
    refused = [answer for answer in answers if "problem" in answer]
    counts = {"accepted": len(answers) - len(refused), "refused": len(refused), "all": len(answers)}
    return page.show(
        "send_many.html",
        422 if problem else 200,
        text=text,
        problem=problem,
        answers=(refused + [answer for answer in answers if "problem" not in answer])[:SHOWN_MAX],
        counts=counts if answers else None,
        key=key,
        sent=not dry_run and bool(answers),
        left=left,
        **_many_shown(),
    )


def _many_shown() -> dict[str, Any]:
    return {"shown_max": SHOWN_MAX, "many_max": MANY_MAX}


async def _sent(page: Page, batch: list[Line], dry_run: bool, key: str) -> list[Mapping[str, Any]]:
    """Answers to one request, with their lines."""
    body = {"messages": [line.message for line in batch]}
    query = {"dry_run": "true"} if dry_run else {}
    headers = {} if dry_run else {"Idempotency-Key": key}
    answer = await page.rest.call("POST", "/v1/messages:batch", query, body, headers)
    return [{"line": line.number, **item} for line, item in zip(batch, answer.document["items"], strict=True)]


SCREENS: Final = (
    screen("/send", form, "write"),
    action("/send", send),
    screen("/send/many", many, "write"),
    action("/send/try", try_many),
    action("/send/many", send_many),
)
