"""The page of roles: what each may call and sees there, found out by calling."""

from collections.abc import Iterator
from typing import Final

from api.access.auth import Role
from tests.pages.text import code, head, table
from tests.unit.api.access.role_world import CALLS, MARKS, Call, Told, ask, seen_in

WHO: Final[tuple[Role | None, ...]] = (None, *Role)
WORDS: Final = """\
Who may call what, and which of what others gave us the answer then shows. Made by calling: a test fills an API with
secrets and asks each of its routes in every role. *yes* is an answer without any of them; 401 wants a token, 403
another role. *Recorded* calls, and all refusals, are records in the audit topic, in which nothing of it ever stands.
Roles and tokens: [security of the API](../api-security.md).

What is looked for: {kinds}.
Error messages are shown without addresses unless the payload is asked for, names of groups also without numbers, quoted
text and paths. Messages and payloads are masked by `dead_letters.mask`.

"""


def cell(told: Told) -> str:
    """A caller's answer in a word: 401 or 403, else the kinds of secrets in it, else yes."""
    if told.status in (401, 403):
        return str(told.status)
    return ", ".join(kind for kind in MARKS if kind in told.seen) or "yes"


def named(name: str, call: Call) -> str:
    """The call as a reader would write it."""
    secrets = {name: "..." if seen_in(value) else value for name, value in call.query.items()}
    query = "&".join(f"{parameter}={value}" for parameter, value in secrets.items())
    return code(f"{name}?{query}" if query else name)


def rows() -> Iterator[tuple[str, ...]]:
    """A line for each call, in the order of paths."""
    for name in sorted(CALLS, key=lambda name: name.split(" ")[::-1]):
        for call in CALLS[name]:
            told = [ask(name, call, role) for role in WHO]
            yield named(name, call), *map(cell, told), "yes" if told[-1].audited else ""


def page() -> str:
    """The whole text."""
    words = WORDS.format(kinds=", ".join(MARKS))
    heads = ("call", "no token", *(role.name.lower() for role in Role), "recorded")
    return head("Roles", "answers of the application to every role", words) + table(heads, rows())
