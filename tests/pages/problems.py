"""The page of errors, from where the code raises them: REST's problem types, and reasons of records set aside.

Types and reasons stand as literals or constants where they are raised, with their words; the source is read for them.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from api.openapi.description import STATUS_OF
from api.routes.jobs import STATUSES
from tests.pages.text import code, head, table
from tests.source import python_files

WORDS: Final = """\
What can go wrong, by the name that programs see.

## Problems

Every error of the REST API is `application/problem+json` (RFC 9457): `type` is `/problems/<name>`, `detail` says what
is wrong or what to do. The command line shows the detail, and ends with 3 for a 404, with 4 for a 409 or 412. An
ellipsis stands for what depends on the case.

"""
DEAD_WORDS: Final = """
## Dead letters

The header `tickover-reason` on a record in a dead-letter topic. When each is given:
[the contract](../contract.md#reasons). What to do: [redrive dead letters](../how-to/redrive-dead-letters.md).

"""
QUARANTINE_WORDS: Final = """
## Quarantine

The header `tickover-reason` on a record in the quarantine topic, with `tickover-detail` for people. When each is given:
[the contract](../contract.md#reasons).

"""
UNSTATED: Final = 422  # what `unprocessable` says, and jobs whose type has no status of its own
STATUS_OF_SCHEDULES: Final = {"schedule-too-large": 422, "rewind-not-back": 422}
OF_ROUTER: Final = {"not-found": 404, "method-not-allowed": 405}
REASON: Final = re.compile(r"[a-z]+(_[a-z]+)*")
# Where the words aren't beside the type: those of a record that is refused, or that pass through a name.
UNSAID: Final[dict[str, list[str]]] = {
    "already_sent": ["The record was sent again already, by hand or by a redrive: …."],
    "too_many_groups": ["So many groups have a state or a note that no more are kept."],
    "not_retryable": ["The policy gives up on the class of its error."],
    "attempts_exhausted": ["The message has no attempt left."],
    "expired": ["The message would expire before it is due."],
    "method_not_allowed": ["… is not allowed here."],
    "not_found": ["There is nothing at this path."],
    "policies_unavailable": ["The policy topic can't be read or written at the moment."],
    "quota_exceeded": ["The policy's quota is used up."],
    "timeout": ["The message would be due after the retries' time is over."],
    "too_large": ["The record is larger than Kafka takes."],
    "transactions_unsupported": ["The cluster can't do transactions for this: …."],
    "unknown_topic": ["There is no such topic."],
}
# Call -> the arguments that hold type or reason, and words.
RAISES: Final = {"Problem": (1, 2), "unprocessable": (0, 1), "JobRefused": (0, 1), "ScheduleRefused": (0, 1)}
SETS_ASIDE: Final = {"Refusal", "Quarantine", "quarantined", "_quarantined"}
GIVES_UP: Final = {"Dead", "dead", "given_up"}


class Raised(NamedTuple):
    """One place where an error is made."""

    call: str
    arguments: list[ast.expr]
    constants: "Names"


Names = dict[str, list[ast.expr]]  # what a name was given before, the latest first


@cache
def raised() -> list[Raised]:
    """All places in the product, read once."""
    sources = [source for source in python_files() if source.place.startswith(("api/", "sidecar/", "policies/"))]
    everywhere: Names = {name: [value] for source in sources for name, value in constants(source.tree)}
    return [
        Raised(name, call.args, everywhere | before(call, given))
        for source in sources
        for function in outermost(source.tree)
        for calls in [list(called(function))]
        for given in [list(constants(function)) if calls else []]
        for name, call in calls
    ]


def outermost(tree: ast.AST) -> Iterator[ast.AST]:
    """The functions that are in no other one: those within are read with them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from outermost(node)


def called(function: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Calls that make an error, by name."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in RAISES or name in SETS_ASIDE or name in GIVES_UP:
                yield name, node


def before(call: ast.Call, given: list[tuple[str, ast.expr]]) -> Names:
    """Values given to names in the function above this call, the nearest first."""
    names: Names = defaultdict(list)
    for name, value in sorted(given, key=lambda pair: pair[1].lineno, reverse=True):
        if value.lineno <= call.lineno:
            names[name].append(value)
    return names


def constants(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that are given a text in this module or function."""
    for node in tree.body if isinstance(tree, ast.Module) else ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def texts(node: ast.expr, known: Names) -> list[str]:
    """Texts that an expression may give: an ellipsis where it depends on the case; a job is a redrive or a change."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name):
            others = {other: values for other, values in known.items() if other != name}
            return next((found for value in known.get(name, ()) if (found := texts(value, others))), [])
        case ast.IfExp():
            return [*texts(node.body, known), *texts(node.orelse, known)]
        case ast.BinOp(op=ast.Add()):
            return [left + right for left in texts(node.left, known) for right in texts(node.right, known)]
        case ast.JoinedStr():
            found = [""]
            for part in node.values:
                value = part.value if isinstance(part, ast.FormattedValue) else part
                if isinstance(value, ast.Attribute) and value.attr == "noun":
                    pieces = ["redrive", "change"]
                elif isinstance(value, ast.Name) and value.id.isupper():
                    pieces = texts(value, known) or ["…"]
                else:
                    pieces = texts(value, {}) if isinstance(value, ast.Constant) else ["…"]
                found = [begin + piece for begin in found for piece in pieces]
            return found
        case _:
            return []


def problems() -> dict[str, tuple[set[int], list[str]]]:
    """Every problem type with its statuses and words."""
    found: dict[str, tuple[set[int], list[str]]] = {name: ({status}, []) for name, status in OF_ROUTER.items()}
    for call, arguments, known in raised():
        if call not in RAISES:
            continue
        at, words = RAISES[call]
        for number, name in enumerate(types := texts(arguments[at], known)):
            details = texts(arguments[words], known)
            entry = found.setdefault(name, (set(), []))
            entry[0].add(status_of(call, name, arguments))
            fitting = details[number : number + 1] if len(details) == len(types) else details
            entry[1].extend(text for text in fitting if text not in entry[1])
    for reason, told in {**reasons(SETS_ASIDE), **UNSAID}.items():
        name = reason.replace("_", "-")
        entry = found.setdefault(name, (set(), []))
        entry[0].update([STATUS_OF.get(name, UNSTATED)] if not entry[0] else ())
        entry[1].extend(text for text in told if text not in entry[1])
    return found


def types() -> str:
    """JSON: status and words of every type, which the API shows at `/problems/{name}`."""
    told = {
        name: {"status": min(statuses), "details": [text for text in words if text.strip("….")]}
        for name, (statuses, words) in sorted(problems().items())
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def status_of(call: str, name: str, arguments: list[ast.expr]) -> int:
    """The status with which REST tells it."""
    match call:
        case "Problem" if isinstance(arguments[0], ast.Constant):
            return int(str(arguments[0].value))
        case "JobRefused":
            return STATUSES.get(name, UNSTATED)
        case "ScheduleRefused":
            return STATUS_OF_SCHEDULES.get(name, 409)
        case _:
            return UNSTATED


def reasons(calls: set[str]) -> dict[str, list[str]]:
    """Reasons that these calls give, each with the words it may come with."""
    found: dict[str, list[str]] = defaultdict(list)
    for call, arguments, known in raised():
        if call not in calls:
            continue
        for number, argument in enumerate(arguments):
            is_named = isinstance(argument, ast.Name) and (argument.id.isupper() or argument.id == "reason")
            if not (is_named or isinstance(argument, ast.Constant)):
                continue
            for reason in texts(argument, known):
                if REASON.fullmatch(reason):
                    words = texts(arguments[number + 1], known) if number + 1 < len(arguments) else []
                    found[reason] += [text for text in words if text and text not in found[reason]]
    return found


def page() -> str:
    """The whole text."""
    told = table(
        ("type", "status", "detail"),
        (
            (code(name), ", ".join(map(str, sorted(statuses))), "<br>".join(words))
            for name, (statuses, words) in sorted(problems().items())
        ),
    )
    dead = table(("reason",), ([code(reason)] for reason in sorted(reasons(GIVES_UP))))
    aside = table(
        ("reason", "detail"),
        ((code(reason), "<br>".join(words)) for reason, words in sorted(reasons(SETS_ASIDE).items())),
    )
    return (
        head("Errors", "the places in api, sidecar and policies that raise them", WORDS)
        + told.replace("\\<br>", "<br>")
        + DEAD_WORDS
        + dead
        + QUARANTINE_WORDS
        + aside.replace("\\<br>", "<br>")
    )
