"""Policies: the list, one with its versions and what changed between two, and an editor that says what is wrong and
what would become of a record.
"""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from api.console.page import Page, action, screen, whole
from api.console.pages.rules.editing import POLICY, at, delete, save, written
from api.console.rest import Refusal
from policies.topic.difference import difference, text_of

LIMIT: Final = 100
VERSIONS_MAX: Final = 100_000  # the last of them is the policy as it is
VERSIONS_PAGE: Final = 500
VERSIONS_SHOWN: Final = 500
NEW: Final = """\
name: reminders
match: {topics: [reminders]}
delay: {default: 15m, max: 400d}
target: {allow: ["mail-*"]}
dead_letter: {topic: reminders-dlq}
"""


async def policies(page: Page) -> Response:
    """All of them."""
    listed = await page.get("/v1/policies", limit=LIMIT, cursor=page.query("cursor"))
    return page.show("policies.html", items=listed["items"], next=listed["next"])


async def policy(page: Page) -> Response:
    """One of them, also one that was deleted; `a` and `b` of the address are versions to be compared."""
    name = page.request.path_params["name"]
    listed, _ = await page.collect(
        f"{at(POLICY, name)}/versions", VERSIONS_MAX, limit=VERSIONS_PAGE
    )  # the oldest first
    versions = {one["version"]: one for one in listed}
    last = max(versions)
    pair = [number if isinstance(number := whole(page.query(key)), int) else 0 for key in ("a", "b")]
    before, after = (pair[0] or max(last - 1, min(versions))), pair[1] or last
    lines: Sequence[str] = ()
    if before in versions and after in versions:
        lines = difference(versions[before]["policy"], versions[after]["policy"])
    return page.show(
        "policy.html", name=name, versions=sorted(versions.values(), key=lambda one: -one["version"])[:VERSIONS_SHOWN],
        now=versions[last], text=text_of(versions[last]["policy"]), before=before, after=after, lines=lines,
    )  # fmt: skip


async def edit(page: Page) -> Response:
    """The editor: of the policy that the address names, else of a new one."""
    name, etag, text = page.query("name"), "", NEW
    if name:
        answer = await page.rest.call("GET", at(POLICY, name))
        etag, text = answer.headers["etag"], text_of(answer.document)
    return await _editor(page, text, etag, name)


async def check(page: Page) -> Response:
    """Faults of the form's text, and what it would make of the record; nothing is written."""
    return await _editor(page, page.form.get("text", ""), page.form.get("etag", ""), page.form.get("name", ""))


async def store(page: Page) -> Response:
    """Write a new version."""
    text = page.form.get("text", "")
    found = written(POLICY, text)
    if found.fault:
        return await _editor(page, text, page.form.get("etag", ""), page.form.get("name", ""))
    try:
        await save(page, POLICY, found.document)
    except Refusal as refusal:
        return await _editor(page, text, page.form.get("etag", ""), page.form.get("name", ""), refusal.detail)
    return page.go("/policies/{name}", "policy-written", name=found.document["name"])


async def roll_back(page: Page) -> Response:
    """Take up an earlier version."""
    name, version = page.request.path_params["name"], page.form.get("version", "")
    body = {"version": whole(version)}
    etag = page.form.get("etag", "")  # none of a policy that was deleted
    await page.rest.call("POST", f"{at(POLICY, name)}/rollback", None, body, {"If-Match": etag} if etag else {})
    return page.go("/policies/{name}", "policy-rolled-back", name=name)


async def remove(page: Page) -> Response:
    """Delete it; its versions stay."""
    name = page.request.path_params["name"]
    await delete(page, POLICY, name)
    return page.go("/policies/{name}", "policy-deleted", name=name)


async def _editor(page: Page, text: str, etag: str, name: str, refused: str = "") -> Response:
    found = written(POLICY, text)
    topic, headers = page.form.get("topic", ""), page.form.get("headers", "")
    if not topic and found.document:
        topic = next((one for one in found.document["match"]["topics"] if "*" not in one), "")
    record = {"topic": topic, "headers": _headers(headers)}
    explained: Any = None
    fault = refused or found.fault
    if not found.fault and topic:
        try:
            explained = await page.rest.post("/v1/policies/explain", {"policy": found.document, "record": record})
        except Refusal as refusal:
            fault = fault or refusal.detail
    return page.show(
        "policy_editor.html", text=text, etag=etag, name=name, fault=fault, topic=topic, headers=headers,
        explained=explained, record=record,
    )  # fmt: skip


def _headers(text: str) -> list[list[str]]:
    """Lines of `name: value`, as they are pasted."""
    pairs = [line.partition(":") for line in text.splitlines() if line.strip()]
    return [[name.strip(), value.strip()] for name, _, value in pairs]


SCREENS: Final = (
    screen("/policies", policies),
    screen("/policies/_edit", edit, "admin"),
    action("/policies/_check", check, "admin"),
    action("/policies/_write", store, "admin"),
    screen("/policies/{name}", policy),
    action("/policies/{name}/rollback", roll_back, "admin"),
    action("/policies/{name}/delete", remove, "admin"),
)
