"""Every page as a command: what `tickover` and `curl` are asked for the same."""

import json
import shlex
from collections.abc import Mapping

from api.console.rest import Query, address_of, query_of


def tickover(words: str, options: Mapping[str, object] | None = None, *arguments: str) -> str:
    """`tickover messages list --target x`; options that are empty are left out, True is a flag.

    Arguments that look like an option stand behind `--`.
    """
    parts = ["tickover", *map(shlex.quote, words.split())]
    for name, value in (options or {}).items():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if one is True:
                parts.append(f"--{name.replace('_', '-')}")
            elif one not in ("", None, False):
                parts += [f"--{name.replace('_', '-')}", shlex.quote(str(one))]
    if any(argument.startswith("-") for argument in arguments):
        parts.append("--")
    return " ".join((*parts, *(shlex.quote(argument) for argument in arguments)))


def curl(base_url: str, method: str, path: str, query: Query | None = None, body: object = None) -> str:
    """The call for curl: `{name}` of the path is filled with that value of the query.

    The token is a variable, as it never stands in a page.
    """
    path, rest = address_of(path, query or {})
    asked = query_of(rest)
    parts = ["curl", "-H", '"Authorization: Bearer $TICKOVER_TOKEN"']
    if method != "GET":
        parts += ["-X", method, "-H", "'Tickover-Client: curl'"]
    if body is not None:
        parts += ["--json", shlex.quote(json.dumps(body))]
    return " ".join((*parts, shlex.quote(f"{base_url}{path}" + (f"?{asked}" if asked else ""))))
